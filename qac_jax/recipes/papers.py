"""The papers' tables and figures, and the command that makes each."""

from typing import NamedTuple


class Shown(NamedTuple):
    """Tables and figures of one command; `sizes`: what its plan does not know by itself."""

    paper: str
    names: tuple[str, ...]
    what: str
    command: str
    sizes: str = ""


QAC, PAIR, AUGTRIEVER = "query as context", "PAIR", "AugTriever"
# Numbers that no paper states are estimates: MS MARCO's spans, and labels of which a teacher is
# sure.
_MARCO = "spans=32e6,passages=8841823,triples_1=502939,triples_2=502939,negatives_2=502939"
_PAIR = (
    "passages=8841823,dpr_examples=502939,candidates=2302939,scored=2302939,"
    "teacher_examples=2514695,pair_examples=5e6,judged_examples=2e6"
)
_PAIR_NQ = (
    "passages=21015324,dpr_examples=58812,candidates=1858812,scored=1858812,"
    "teacher_examples=117624,pair_examples=5e6,judged_examples=230e3"
)
_TRIPLES = "triples=502939"
_BEIR = f"spans=32e6,{_TRIPLES},beir=25e6"
_RELATED = "qac analyse --pairs QUERIES --passages SPANS --sheet True"
_SPANS = "qac extract --passages PASSAGES --method plm --scorer T5 --keep 16"
_TEXTS = "qac generate --passages PASSAGES --gin_file queries/tqgen.gin --generator T0_3B"
_LABELS = "qac analyse --pairs LABELS --passages PASSAGES --sheet True"
_NQ = ("table 1", "table 2", "table 3", "table 4", "table 5", "figure 4")
_ALL = ("table 1", "table 3", "table 6", "figure 2", "figure 3", "figure 4")
ROWS = (
    Shown(
        QAC, ("table 1", "table 3", "table 4"), "MS MARCO, TREC DL", "qac run qac_tables", _MARCO
    ),
    Shown(QAC, ("table 2",), "BEIR, zero-shot", "qac run qac_beir", _BEIR),
    Shown(QAC, ("table 5",), "a sheet for judges of the contexts of table 1", _RELATED),
    Shown(PAIR, ("table 1", "table 2"), "MS MARCO (NQ: below)", "qac run pair_msmarco", _PAIR),
    Shown(PAIR, _NQ, "NQ: ablations, alphas, thresholds", "qac run pair_nq_tables", _PAIR_NQ),
    Shown(PAIR, ("table 5",), "a sheet for judges of the labels of a threshold", _LABELS),
    Shown(AUGTRIEVER, _ALL, "strategies; BEIR by groups", "qac run augtriever_tables", _TRIPLES),
    Shown(AUGTRIEVER, ("table 2",), "adaptation", "qac run augtriever_adaptations"),
    Shown(AUGTRIEVER, ("table 4",), "spans by their likelihood", _SPANS),
    Shown(AUGTRIEVER, ("table 5",), "texts by the four prompts", _TEXTS),
)
