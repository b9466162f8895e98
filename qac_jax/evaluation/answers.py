"""Open-domain question answering: does a passage contain an answer? (Karpukhin et al. 2020, DPR)

Text and answer are normalised to NFD, tokenized and lower-cased; the answer must occur in the
passage's text, never its title, as a sequence of whole tokens. CuratedTREC has regular expressions
instead. hit@k is the share of all questions with an answer in one of their top k passages.
"""

import functools
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

import regex

from qac_jax import progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, shown
from qac_jax.evaluation.metrics import QueryScores, depth_of
from qac_jax.evaluation.results import MACRO, Judge, Result
from qac_jax.formats.queries import Query, read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Ranking, Run
from qac_jax.retrieval.corpus import by_id


MEASURES = ("hit@5", "hit@20", "hit@100")

# Separates tokens in a joined text: a control character, which no token contains.
_SEPARATOR = "\n"

# Seconds for one regular expression and one passage; most take microseconds.
_PATIENCE = 10

Matcher = Callable[[str], bool]


# DPR's expression: a run of letters, numbers and marks, or any other single visible character.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def tokens(text: str) -> list[str]:
    """The lower-cased tokens of a text in NFD."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def matcher(answers: Sequence[str], form: str = "text") -> Matcher:
    """Whether a text contains an answer; an invalid expression matches nothing, as in DPR."""
    return _by_pattern(answers) if form == "regex" else _by_tokens(answers)


def _by_tokens(answers: Sequence[str]) -> Matcher:
    wanted = [
        (max(parts, key=len).casefold(), _joined(answer))
        for answer in answers
        if (parts := tokens(answer))
    ]

    def holds(text: str) -> bool:
        # Searching for a word of the answer first decides most passages; tokenizing is slow.
        plain = unicodedata.normalize("NFD", text).casefold()
        return any(word in plain and answer in _joined(text) for word, answer in wanted)

    return holds


def _by_pattern(answers: Sequence[str]) -> Matcher:
    patterns = []
    for answer in answers:
        try:
            plain = unicodedata.normalize("NFD", answer)
            patterns.append(regex.compile(plain, regex.IGNORECASE | regex.MULTILINE))
        except (regex.error, RecursionError) as error:
            progress.say(f"the answer {answer!r} is no regular expression ({error})")

    def holds(text: str) -> bool:
        text = unicodedata.normalize("NFD", text)
        try:
            return any(pattern.search(text, timeout=_PATIENCE) for pattern in patterns)
        except TimeoutError:
            said = ", ".join(shown(pattern.pattern) for pattern in patterns)
            raise UserError(
                f"one of the answers {said} takes over {_PATIENCE} s to search a passage of "
                f"{len(text):,} characters; write a simpler expression"
            ) from None

    return holds


@functools.lru_cache(maxsize=1 << 14)
def _joined(text: str) -> str:
    return f"{_SEPARATOR}{_SEPARATOR.join(tokens(text))}{_SEPARATOR}"


def evaluate(
    run: Mapping[str, Ranking],
    questions: Iterable[Query],
    texts: Callable[[Sequence[str]], Sequence[str]],
    *,
    form: str = "text",
    measures: Sequence[str] = MEASURES,
) -> QueryScores:
    """Hit rates of a run; `texts` gives the passages' texts for their ids."""
    cuts = {measure: depth_of(measure) or 0 for measure in measures}
    if not all(name.startswith("hit@") and cut for name, cut in cuts.items()):
        raise UserError("answers are measured by hit@k, such as hit@20")
    deepest = max(cuts.values())
    per_query: dict[str, dict[str, float]] = {}
    with progress.Bar("match answers", unit="questions") as bar:
        for question in questions:
            if not question.answers:
                raise UserError(f"question {question.id!r} has no answers; judge by --qrels")
            holds = matcher(question.answers, form)
            ranking = run.get(question.id)
            ids = ranking.ids[:deepest] if ranking is not None else ()
            rank = next((i for i, text in enumerate(texts(ids), 1) if holds(text)), None)
            per_query[question.id] = {
                measure: float(rank is not None and rank <= cut) for measure, cut in cuts.items()
            }
            bar.advance()
    retrieved = frozenset(query for query in per_query if query in run)
    if not retrieved:
        raise UserError(f"the run has none of the {len(per_query)} questions; check both")
    unasked = sum(query not in per_query for query in run)
    return QueryScores(per_query, retrieved, frozenset(per_query), unasked)


def by_answers(
    queries: str | os.PathLike[str], passages: Artifact, form: str, measures: Sequence[str]
) -> Judge:
    """Judges runs by whether passages hold an answer; EntityQuestions by relation as well."""
    questions = list(read_queries(queries))
    relations: dict[str, list[str]] = {}
    for question in questions:
        if "relation" in question.meta:
            relations.setdefault(str(question.meta["relation"]), []).append(question.id)
    records = [Records(passages)]

    def texts(ids: Sequence[str]) -> list[str]:
        return [record["text"] for record in by_id(records, ids)]

    def judge(name: str, run: Run) -> Result:
        scores = evaluate(run, questions, texts, form=form, measures=measures)
        result = Result.of(name, scores, "judged")
        for measure in measures if relations else ():
            of_relations = [
                sum(scores.per_query[query][measure] for query in of) / len(of)
                for of in relations.values()
            ]
            result.mean[MACRO + measure] = sum(of_relations) / len(of_relations)
        return result

    return judge
