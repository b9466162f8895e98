"""The benchmarks' own rules: the measures, the queries of a mean, and the sets of an average.

A `Protocol` says how one collection is evaluated. A `Suite` holds the metrics of many collections
as in the AugTriever paper (Tables 1 and 6): MS MARCO, 14 BEIR sets, six question sets.
An average exists only when all its members do; those that are missing are named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from qac_jax.errors import UserError, nearest
from qac_jax.evaluation import metrics
from qac_jax.evaluation.metrics import Judgements
from qac_jax.evaluation.results import Result
from qac_jax.formats.runs import Ranking, Run


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a collection is evaluated, and how many passages a query are retrieved."""

    measures: tuple[str, ...]
    level: int = 1
    over: str = "judged"
    self_hits: bool = True
    depth: int = 1000


PROTOCOLS = {
    # Any other collection.
    "own": Protocol(("mrr@10", "ndcg@10", "hit@1", "hit@50", "recall@100", "map")),
    # The script divides by the queries that have a relevant passage (6,980 of the dev set).
    "msmarco": Protocol(("mrr@10", "hit@1", "hit@50", "hit@1000", "ndcg@10"), over="answerable"),
    # Grades 0 to 3: for binary measures a passage is relevant from grade 2 on.
    "trec_dl": Protocol(("ndcg@10", "map", "mrr@10", "recall@100", "recall@1000"), level=2),
    # A query that is itself in the corpus (ArguAna, Quora) is not counted as its own answer.
    "beir": Protocol(
        ("ndcg@10", "recall@100", "capped_recall@100", "map@100", "mrr@10"), self_hits=False
    ),
}

FORUMS = (
    "android", "english", "gaming", "gis", "mathematica", "physics",
    "programmers", "stats", "tex", "unix", "webmasters", "wordpress",
)  # fmt: skip
CQADUPSTACK = "cqadupstack"
MSMARCO = "msmarco"

# Folder name -> name in papers, in their order.
BEIR14 = {
    "trec-covid": "TREC-COVID",
    "nfcorpus": "NFCorpus",
    "nq": "NQ",
    "hotpotqa": "HotpotQA",
    "fiqa": "FiQA-2018",
    "arguana": "ArguAna",
    "webis-touche2020": "Touché-2020",
    "dbpedia-entity": "DBPedia",
    "scidocs": "SCIDOCS",
    "fever": "FEVER",
    "climate-fever": "Climate-FEVER",
    "scifact": "SciFact",
    "quora": "Quora",
    CQADUPSTACK: "CQADupStack",
}
# The paper does not name the eleven sets. These are the sets that CPT-text reports; Contriever's
# results on them have the printed average.
BEIR11 = tuple(name for name in BEIR14 if name not in ("nq", "scidocs", CQADUPSTACK))

QUESTIONS = {
    "nq": "NQ",
    "triviaqa": "TriviaQA",
    "webq": "WebQ",
    "curatedtrec": "CuratedTREC",
    "squad": "SQuAD",
    "entityquestions": "EntityQuestions",
}
QA4 = ("nq", "triviaqa", "webq", "curatedtrec")
SQ_EQ = ("squad", "entityquestions")

# AugTriever, appendix A.5, as printed: NFCorpus is among short and long documents, SCIDOCS among
# middle and long ones.
GROUPS = {
    "short queries": ("nfcorpus", "webis-touche2020", "dbpedia-entity"),
    "middle queries": (
        "trec-covid", "nq", "fiqa", "scidocs", "fever", "scifact", "quora", CQADUPSTACK,
    ),
    "long queries": ("hotpotqa", "arguana", "climate-fever"),
    "short documents": ("nfcorpus", "hotpotqa", "dbpedia-entity"),
    "middle documents": ("nq", "fiqa", "scidocs", "fever", "climate-fever", CQADUPSTACK),
    "long documents": (
        "trec-covid", "nfcorpus", "arguana", "webis-touche2020", "scidocs", "scifact",
    ),
    "phrases": ("dbpedia-entity", "arguana", "climate-fever"),
    "questions": (
        "trec-covid", "nq", "hotpotqa", "fiqa", "webis-touche2020", "quora", CQADUPSTACK,
    ),
    "sentences": ("arguana", "scidocs", "fever", "climate-fever", "scifact"),
    "Wikipedia": ("nq", "hotpotqa", "dbpedia-entity", "fever", "climate-fever"),
    "science": ("trec-covid", "webis-touche2020", "scidocs", "scifact"),
    "question answering": ("nq", "hotpotqa", "fiqa"),
    "argument": ("arguana", "webis-touche2020"),
    "fact checking": ("scifact", "fever", "climate-fever"),
}  # fmt: skip

_ALIASES = {
    "touche2020": "webis-touche2020",
    "touche-2020": "webis-touche2020",
    "dbpedia": "dbpedia-entity",
    "fiqa-2018": "fiqa",
}


def protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise UserError(f"unknown protocol {name!r}; {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]


def set_name(folder: str) -> str:
    """The name of a set as BEIR spells it."""
    name = folder.lower().replace("_", "-")
    return _ALIASES.get(name, name)


def protocol_of(collection: str) -> str:
    """The protocol of a collection: BEIR's for its sets, with MS MARCO."""
    name = set_name(collection.split("/")[0])
    return "beir" if name in BEIR14 or name == MSMARCO else "own"


def without_self_hits(run: Mapping[str, Ranking]) -> Run:
    """The run without passages that have their query's id."""
    return {query: ranking.without(query) for query, ranking in run.items()}


def judge(name: str, run: Mapping[str, Ranking], judgements: Judgements, rules: Protocol) -> Result:
    """Metrics of one run on one collection by its rules; the whole run is used."""
    if not rules.self_hits:
        run = without_self_hits(run)
    scores = metrics.evaluate(run, judgements, rules.measures, rules.level)
    return Result.of(name, scores, rules.over)


def forums_together(parts: Sequence[Result]) -> Result:
    """CQADupStack: the mean of its twelve forums' means, whatever their number of queries."""
    absent = set(FORUMS) - {part.name.split("/")[-1] for part in parts}
    if absent:
        raise UserError(
            f"CQADupStack is the mean of twelve forums; missing: {', '.join(sorted(absent))}"
        )
    return Result(
        CQADUPSTACK,
        {m: sum(p.mean[m] for p in parts) / len(parts) for m in parts[0].mean},
        {},  # these are in the forums' own results: two forums may use the same id
        sum(part.queries for part in parts),
        sum(part.missing for part in parts),
    )


@dataclasses.dataclass(frozen=True)
class Suite:
    """One system's metrics: nDCG@10 of BEIR sets, hit rates of question sets."""

    ndcg: Mapping[str, float]
    hits: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def beir14(self) -> float | None:
        return _mean(self.ndcg, tuple(BEIR14))

    def beir11(self) -> float | None:
        return _mean(self.ndcg, BEIR11)

    def questions(self, sets: Sequence[str], measure: str = "hit@20") -> float | None:
        rates = {name: values[measure] for name, values in self.hits.items() if measure in values}
        return _mean(rates, sets)

    def groups(self) -> dict[str, float | None]:
        """The means of the appendix's groups."""
        return {group: _mean(self.ndcg, sets) for group, sets in GROUPS.items()}

    def missing(self) -> list[str]:
        """The sets of BEIR14 without a value."""
        return [printed for name, printed in BEIR14.items() if name not in self.ndcg]

    def summary(self) -> dict[str, float | None]:
        """The columns of Table 1."""
        return {
            "MM": self.ndcg.get(MSMARCO),
            "BEIR14": self.beir14(),
            "BEIR11": self.beir11(),
            "QA4": self.questions(QA4),
            "SQ&EQ": self.questions(SQ_EQ),
        }

    def columns(self) -> dict[str, float | None]:
        """The columns of Table 6 in their order."""
        columns: dict[str, float | None] = {"MS MARCO": self.ndcg.get(MSMARCO)}
        columns |= {printed: self.ndcg.get(name) for name, printed in BEIR14.items()}
        columns["BEIR Avg (14)"] = self.beir14()
        for name, printed in QUESTIONS.items():
            for k in (5, 20, 100):
                columns[f"{printed} R@{k}"] = self.hits.get(name, {}).get(f"hit@{k}")
        for k in (5, 20, 100):
            columns[f"Average R@{k}"] = self.questions(tuple(QUESTIONS), f"hit@{k}")
        return columns


def _mean(figures: Mapping[str, float], members: Sequence[str]) -> float | None:
    if any(name not in figures for name in members):
        return None
    return sum(figures[name] for name in members) / len(members)
