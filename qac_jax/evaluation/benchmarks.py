"""The benchmarks' own rules: the measures, the queries of a mean, and the sets of an average.

A `Protocol` says how one collection is evaluated. `evaluate_folder` evaluates collections in BEIR's
layout with any search engine:

    def searcher(collection):               # indexes collection.path's corpus
        return search                       # search(queries, k) -> run

    results = [result for result, run in evaluate_folder("data/beir", searcher)]

A `Suite` holds the metrics of many collections as in the AugTriever paper (Tables 1 and 6): MS
MARCO, 14 BEIR sets, six question sets. An average exists only when all its members do.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.evaluation import metrics
from qac_jax.evaluation.metrics import MEASURES, OVER, Judgements
from qac_jax.evaluation.results import Judge, Result
from qac_jax.fields import option
from qac_jax.formats.files import find
from qac_jax.formats.judgements import by_query, judgements_file, read_judgements
from qac_jax.formats.queries import Query, read_queries
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


@dataclasses.dataclass(frozen=True)
class Judging:
    """How rankings are judged."""

    protocol: str = option("own", "evaluation protocol", choices=tuple(PROTOCOLS))
    measures: tuple[str, ...] = option(
        (), "metrics, such as ndcg@10,mrr@10,map (default: the protocol's)", shown=MEASURES
    )
    level: int = option(0, "lowest grade that counts as relevant (0: the protocol's)", at_least=0)
    over: str = option(
        "",
        "queries to average over: judged, retrieved or answerable (default: the protocol's)",
        choices=("", *OVER),
    )
    depth: int = option(
        0,
        "evaluate at most N passages of each ranking (0: all, or the protocol's number)",
        at_least=0,
    )

    @property
    def chosen(self) -> bool:
        """Whether anything differs from what a collection's own protocol says."""
        return bool(self.protocol != "own" or self.measures or self.level or self.over)

    def resolved(self) -> Protocol:
        """The protocol with what was chosen instead."""
        rules = PROTOCOLS[self.protocol]
        return dataclasses.replace(
            rules,
            measures=self.measures or rules.measures,
            level=self.level or rules.level,
            over=self.over or rules.over,
        )


def set_name(folder: str) -> str:
    """The name of a set as BEIR spells it."""
    name = folder.lower().replace("_", "-")
    return _ALIASES.get(name, name)


def judge(name: str, run: Mapping[str, Ranking], judgements: Judgements, rules: Protocol) -> Result:
    if not rules.self_hits:
        run = {query: ranking.without(query) for query, ranking in run.items()}
    scores = metrics.evaluate(run, judgements, rules.measures, rules.level)
    return Result.of(name, scores, rules.over)


def by_judgements(qrels: str | os.PathLike[str], rules: Protocol) -> Judge:
    """Judges runs by relevance judgements, which are read once."""
    judgements = by_query(read_judgements(qrels))
    return lambda name, run: judge(name, run, judgements, rules)


@dataclasses.dataclass(frozen=True)
class Collection:
    """corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv in one folder."""

    name: str
    path: str
    split: str

    @property
    def rules(self) -> Protocol:
        """BEIR's for its sets, with MS MARCO."""
        name = set_name(self.name.split("/")[0])
        return PROTOCOLS["beir" if name in BEIR14 or name == MSMARCO else "own"]


SearchFunction = Callable[[Sequence[Query], int], Mapping[str, Ranking]]
Searcher = Callable[[Collection], SearchFunction]


def collections(folder: str | os.PathLike[str], split: str = "") -> list[Collection]:
    """All collections of a folder; without `split` on their test set, MS MARCO on its dev set."""
    folder = os.path.abspath(os.fspath(folder))
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder; give a folder in BEIR's layout")
    found = []
    for path in (folder, *_children(folder)):
        below = path != folder and set_name(os.path.basename(path)) == CQADUPSTACK
        for place in (path, *(_children(path) if below else ())):
            if not find(place, "corpus.jsonl") or not os.path.isdir(os.path.join(place, "qrels")):
                continue
            parent, name = os.path.split(place)
            forum = set_name(os.path.basename(parent)) == CQADUPSTACK
            if forum and (place != folder or name in FORUMS):
                name = f"{CQADUPSTACK}/{name}"
            default = "dev" if set_name(name) == MSMARCO else "test"
            found.append(Collection(name, place, split or default))
        if found and path == folder:
            break
    if not found:
        raise UserError(f"{folder} holds no collection: corpus.jsonl, queries.jsonl and qrels/")
    return found


def _children(folder: str) -> list[str]:
    paths = (os.path.join(folder, name) for name in sorted(os.listdir(folder)))
    return [path for path in paths if os.path.isdir(path)]


def evaluate_folder(
    folder: str | os.PathLike[str],
    searcher: Searcher,
    *,
    split: str = "",
    rules: Protocol | None = None,
    depth: int = 0,
) -> Iterator[tuple[Result, Run]]:
    """Searches and evaluates all collections of a folder by `rules` (default: the own of each)."""
    for collection in collections(folder, split):
        own = rules or collection.rules
        own = dataclasses.replace(own, depth=depth or own.depth)
        judgements = by_query(read_judgements(judgements_file(collection.path, collection.split)))
        queries = [query for query in read_queries(collection.path) if query.id in judgements]
        if absent := judgements.keys() - {query.id for query in queries}:
            place = f"of {collection.path} have no text in queries.jsonl"
            raise UserError(f"{len(absent)} judged queries {place}, such as {min(absent)!r}")
        # One more, so that `depth` passages remain when a query retrieves itself.
        found = searcher(collection)(queries, own.depth + (not own.self_hits))
        run = {
            query: (ranking if own.self_hits else ranking.without(query)).top(own.depth)
            for query, ranking in found.items()
        }
        result = judge(collection.name, run, judgements, own)
        figures = ", ".join(f"{m} {v:.4f}" for m, v in list(result.mean.items())[:2])
        progress.say(f"{collection.name}: {figures} ({result.queries:,} queries)")
        yield result, run


def with_forums_together(results: Sequence[Result]) -> list[Result]:
    """Adds CQADupStack, the mean of its twelve forums' means, whatever their number of queries;
    logs which of them are missing."""
    forums = [r for r in results if r.name.startswith(f"{CQADUPSTACK}/")]
    if not forums:
        return list(results)
    if absent := sorted(set(FORUMS) - {r.name.split("/")[1] for r in forums}):
        progress.say(f"CQADupStack has no value without its forums {', '.join(absent)}")
        return list(results)
    together = Result(
        CQADUPSTACK,
        {m: sum(p.mean[m] for p in forums) / len(forums) for m in forums[0].mean},
        {},  # these are in the forums' own results: two forums may use the same id
        sum(forum.queries for forum in forums),
        sum(forum.missing for forum in forums),
    )
    return [*results, together]


@dataclasses.dataclass(frozen=True)
class Suite:
    """One system's metrics: nDCG@10 of BEIR sets, hit rates of question sets."""

    ndcg: Mapping[str, float]
    hits: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def questions(self, sets: Sequence[str], measure: str = "hit@20") -> float | None:
        rates = {name: values[measure] for name, values in self.hits.items() if measure in values}
        return _mean(rates, sets)

    def groups(self) -> dict[str, float | None]:
        return {group: _mean(self.ndcg, sets) for group, sets in GROUPS.items()}

    def missing(self) -> list[str]:
        return [printed for name, printed in BEIR14.items() if name not in self.ndcg]

    def summary(self) -> dict[str, float | None]:
        """The columns of Table 1."""
        return {
            "MM": self.ndcg.get(MSMARCO),
            "BEIR14": _mean(self.ndcg, tuple(BEIR14)),
            "BEIR11": _mean(self.ndcg, BEIR11),
            "QA4": self.questions(QA4),
            "SQ&EQ": self.questions(SQ_EQ),
        }

    def columns(self) -> dict[str, float | None]:
        """The columns of Table 6 in their order."""
        columns: dict[str, float | None] = {"MS MARCO": self.ndcg.get(MSMARCO)}
        columns |= {printed: self.ndcg.get(name) for name, printed in BEIR14.items()}
        columns["BEIR Avg (14)"] = _mean(self.ndcg, tuple(BEIR14))
        for name, printed in QUESTIONS.items():
            rates = self.hits.get(name, {})
            columns |= {f"{printed} R@{k}": rates.get(f"hit@{k}") for k in (5, 20, 100)}
        every = tuple(QUESTIONS)
        averages = {f"Average R@{k}": self.questions(every, f"hit@{k}") for k in (5, 20, 100)}
        return columns | averages


def _mean(figures: Mapping[str, float], members: Sequence[str]) -> float | None:
    if any(name not in figures for name in members):
        return None
    return sum(figures[name] for name in members) / len(members)
