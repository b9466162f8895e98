"""BM25: an artefact of kind "bm25", memory-mapped. bm25s computes the score of each word in each
passage at indexing time; a search sums them.
"""

import concurrent.futures
import dataclasses
import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from qac_jax.artifacts import Artifact, Writer, arrays
from qac_jax.errors import UserError, nearest
from qac_jax.fields import Checked, option
from qac_jax.retrieval.corpus import Searchable


KIND = "bm25"
DESCRIPTION = "bm25.json"
VOCABULARY = "vocabulary.txt"
# bm25s's sparse matrix, one column for each word.
ARRAYS = {"data": ("float32",), "indices": ("int32", "int64"), "indptr": ("int32", "int64")}

# From this number of rows on, a query takes long enough for threads to be worth it: with 100,000
# two of them take 1.3 times as long as one, with a million two thirds.
_MANY_ROWS = 1 << 18

# The scores of words that more than this share of the rows have are added up as whole vectors,
# which is faster than by their rows. At most _WHOLE bytes of these are kept, of the most frequent.
_FREQUENT = 1 / 8
_WHOLE = 256 << 20

# Words whose stems are kept in memory: a server meets new ones for ever.
_STEMS = 1 << 17

VARIANTS = ("lucene", "robertson", "atire")

# Words of one letter count: bm25s's own pattern ignores them, Lucene does not.
WORD = re.compile(r"(?u)\b\w+\b")
# Lucene's (and so Anserini's) English stop words.
_LUCENE = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with".split()
)
# Snowball's: also pronouns, auxiliaries and the words of questions, in pieces as WORD finds them.
_SNOWBALL = frozenset(
    "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself "
    "she her hers herself its itself them theirs themselves what which who whom those am were been "
    "being have has had having do does did doing would should could ought because until while "
    "about against between through during before after above below from up down out off over under "
    "again further once here when where why how all any both each few more most other some nor "
    "only own same so than too very can s t ll re ve don doesn didn isn wasn weren won hasn "
    "haven hadn couldn shouldn wouldn aren".split()
)
STOP_WORDS = {"none": frozenset[str](), "lucene": _LUCENE, "snowball": _LUCENE | _SNOWBALL}


@dataclasses.dataclass(frozen=True)
class Scoring(Checked):
    """BM25's two parameters and its variant."""

    k1: float = option(0.9, at_least=0)
    b: float = option(0.4, at_least=0, at_most=1)
    variant: str = option("lucene", choices=VARIANTS)


# Anserini's values, tuned on MS MARCO, Lucene's own, and those for people's questions about their
# documents, with Snowball's stop words (docs/results/own-documents.md).
QUESTIONS = "questions"
PRESETS = {
    "anserini": Scoring(0.9, 0.4),
    "lucene": Scoring(1.2, 0.75),
    QUESTIONS: Scoring(0.6, 0.75),
}


def stemmers() -> tuple[str, ...]:
    """The languages of the stemmers that are installed, and none."""
    try:
        import Stemmer
    except ImportError:
        return ()
    return ("", *Stemmer.algorithms())


class Analyzer:
    def __init__(self, stemmer: str = "english", stop_words: str | bool = "lucene"):
        import Stemmer

        if isinstance(stop_words, bool):  # in indexes of earlier versions
            stop_words = "lucene" if stop_words else "none"
        if stop_words not in STOP_WORDS:
            raise UserError(f"stop_words={stop_words!r} is not known; give one of {[*STOP_WORDS]}")

        known = Stemmer.algorithms()
        if stemmer and stemmer not in known:
            raise UserError(f"stemmer={stemmer!r} is not known; {nearest(stemmer, known)}")
        self.settings = {"stemmer": stemmer, "stop_words": stop_words}
        self._stem = Stemmer.Stemmer(stemmer).stemWord if stemmer else str
        self._stop = STOP_WORDS[stop_words]
        self.known: dict[str, str] = {}

    def words(self, text: str) -> list[str]:
        """The words of one text, in order; every distinct word is stemmed once."""
        stems = []
        for word in WORD.findall(text.lower()):
            if word not in self._stop:
                if (stem := self.known.get(word)) is None:
                    if len(self.known) >= _STEMS:
                        self.known.clear()
                    stem = self.known[word] = self._stem(word)
                stems.append(stem)
        return stems


def information(counts: Sequence[int], rows: int) -> float:
    """The sum of the inverse document frequencies of words that are in `counts` of all rows."""
    known = np.asarray(counts, np.float64)
    return float(np.log1p((rows - known + 0.5) / (known + 0.5)).sum()) or 1.0


def _library() -> Any:
    """bm25s, which logs every index at the level DEBUG, unless it is asked not to."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


def write(out: Writer, texts: Iterable[str], analyzer: Analyzer, scoring: Scoring) -> int:
    """Builds the index of texts, in their order; returns how many there are."""
    numbers: dict[str, int] = {}
    rows = []
    for text in texts:
        # Numbered by first appearance, so that the files are the same from run to run.
        rows.append([numbers.setdefault(word, len(numbers)) for word in analyzer.words(text)])
    if not numbers:
        raise UserError("no text contains a word; give passages with text")
    scores = _library().BM25(k1=scoring.k1, b=scoring.b, method=scoring.variant)
    scores.index((rows, numbers), show_progress=False, create_empty_token=False)
    for name in ARRAYS:
        out.write_array(f"{name}.npy", scores.scores[name])
    with out.open(VOCABULARY) as file:
        file.writelines(f"{word}\n" for word in numbers)
    described = {**dataclasses.asdict(scoring), **analyzer.settings, "rows": len(rows)}
    out.write_json(DESCRIPTION, described)
    return len(rows)


class Bm25(Searchable):
    """A finished index; its matrix is memory-mapped."""

    def __init__(self, artifact: Artifact):
        super().__init__(artifact)
        self.description = artifact.json(DESCRIPTION)
        self.analyzer = Analyzer(self.description["stemmer"], self.description["stop_words"])

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        words = self.artifact.file(VOCABULARY).read_text().splitlines()
        return {word: number for number, word in enumerate(words)}

    @functools.cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ARRAYS: the scores of each word's rows, these rows, and where each word's begin."""
        files = ((self.artifact.file(f"{name}.npy"), types) for name, types in ARRAYS.items())
        data, rows, starts = (arrays.read(file, *types) for file, types in files)
        return data, rows, starts

    @functools.cached_property
    def _whole(self) -> dict[int, np.ndarray | None]:
        """The scores of frequent words in all rows: None until a question has the word."""
        most = np.argsort(-self._counts, kind="stable")[: _WHOLE // (4 * len(self))]
        return dict.fromkeys(most[self._counts[most] > _FREQUENT * len(self)].tolist())

    def _sum(self, words: Sequence[int]) -> np.ndarray:
        """The scores of all rows, added up word by word in the question's order."""
        data, rows, starts = self._columns
        scores = np.zeros(len(self), np.float32)
        for word in words:
            if (whole := self._whole.get(word)) is not None:
                scores += whole
                continue
            column = slice(starts[word], starts[word + 1])
            if word in self._whole:
                whole = np.zeros_like(scores)
                whole[rows[column]] = data[column]
                self._whole[word] = whole
            np.add.at(scores, rows[column], data[column])
        return scores

    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Of equal scores the earlier row wins."""
        gains = np.full((len(questions), k), -np.inf, np.float32)
        rows = np.full((len(questions), k), -1, np.int64)
        searched = [self._words(question) for question in questions]

        def search(place: int) -> None:
            if searched[place]:
                scores = self._sum(searched[place])
                best = top(scores, k, above=0)
                gains[place, : len(best)], rows[place, : len(best)] = scores[best], best

        self._for_each(len(questions), search)
        return gains, rows

    def scores_of(self, questions: Sequence[str], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The scores of some rows for each question; 0 where a row has none of its words."""
        scores = [np.zeros(len(wanted), np.float32) for wanted in rows]

        def score(place: int) -> None:
            if words := self._words(questions[place]):
                scores[place] = self._sum(words)[rows[place]]

        self._for_each(len(questions), score)
        return scores

    def information(self, question: str) -> float:
        """What the words of a question say, those that no passage has too."""
        columns = [self.numbers.get(word) for word in self.analyzer.words(question)]
        counts = [0 if n is None else self._counts[n] for n in columns]
        return information(counts, len(self))

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """The number of passages that have each word."""
        return np.diff(self._columns[2])

    def _for_each(self, count: int, work: Callable[[int], None]) -> None:
        """Does the work for each number below `count`, on all cores where that is worth it."""
        _ = self._whole  # opened before there are threads
        threads = (os.cpu_count() or 1) if len(self) >= _MANY_ROWS else 1
        if threads == 1:
            list(map(work, range(count)))
            return
        each = max(1, -(-count // (4 * threads)))
        blocks = [range(a, min(a + each, count)) for a in range(0, count, each)]
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda places: list(map(work, places)), blocks))

    def _words(self, question: str) -> list[int]:
        words = (self.numbers.get(word) for word in self.analyzer.words(question))
        return [number for number in words if number is not None]


def top(scores: np.ndarray, k: int, above: float = -np.inf) -> np.ndarray:
    """The places of the top k of the scores above this, best first; of equal scores the earlier
    place wins.
    """
    if not k:
        return np.zeros(0, np.int64)
    # At least k blocks have a score as high as the kth of the blocks' highest. Blocks are strided,
    # so that their maxima are taken of whole vectors.
    highest = scores
    if (size := len(scores) // (8 * k)) > 1:
        highest = scores[: 8 * k * size].reshape(size, 8 * k).max(axis=0)
    least = np.partition(highest, -k)[-k] if len(highest) > k else above
    chosen = (scores >= least if least > above else scores > above).nonzero()[0]
    return chosen[np.argsort(-scores[chosen], kind="stable")[:k]]
