"""`qac bench bm25`: questions by BM25, beside bm25s with numba."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError
from qac_jax.fields import option


_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Bm25:
    """Questions/s of BM25 (analysing them included), and over bm25s with numba.

    Passages are real ones, repeated up to `rows`; a question is eight words in a row of one. Each
    side finds the top k of all questions in one call, as it uses the cores by itself. Repetitions
    alternate, figures are medians; the benchmark fails if the scores differ.
    """

    EXAMPLE = "qac bench bm25 --rows 100000"

    corpus: str = option("numpy,scipy,jax", "Python packages whose documentation is read")
    rows: int = option(12_000, "passages in the index", at_least=1)
    queries: int = option(1000, "questions", at_least=1)
    k: int = option(100, "top k passages per question", at_least=1)
    repetitions: int = option(5, "repetitions of each side", at_least=1)

    def run(self) -> dict[str, Any]:
        import bm25s
        import Stemmer
        from bm25s.tokenization import Tokenizer

        from qac_jax import artifacts
        from qac_jax.formats.records import write_records
        from qac_jax.pipeline import stage
        from qac_jax.processes import cores
        from qac_jax.retrieval import bm25
        from qac_jax.stages.index import Bm25 as Index

        peer.package("numba")
        k = min(self.k, self.rows)  # bm25s finds no more than there are
        texts = peer.passages(self.corpus, self.rows)
        texts = [texts[row % len(texts)] for row in range(self.rows)]
        words = [texts[row * len(texts) // self.queries].split() for row in range(self.queries)]
        questions = [" ".join(word[len(word) // 2 :][:8]) for word in words]
        stemmer, stop = Stemmer.Stemmer("english"), list(bm25.STOP_WORDS["lucene"])
        tokenizer = Tokenizer(splitter=bm25.WORD.findall, stemmer=stemmer, stopwords=stop)
        theirs = bm25s.BM25(k1=0.9, b=0.4, backend="numba")
        theirs.index(tokenizer.tokenize(texts, show_progress=False), show_progress=False)
        theirs.activate_numba_scorer()

        def find() -> Any:
            asked = tokenizer.tokenize(questions, update_vocab=False, show_progress=False)
            return theirs.retrieve(asked, k=k, n_threads=cores(), show_progress=False)

        with tempfile.TemporaryDirectory() as folder:
            with artifacts.create(Path(folder) / "passages", kind="passages") as out:
                write_records(out, ({"_id": str(n), "text": t} for n, t in enumerate(texts)))
            made = Index(passages=str(Path(folder) / "passages"))
            ours = bm25.Bm25(stage.execute(made, Path(folder) / "bm25"))
            sides = {"qac_jax": lambda: ours.find(questions, k), "bm25s_numba": find}
            figures = peer.compared(sides, self.queries, "questions", self.repetitions)
            found = np.maximum(ours.find(questions, k)[0], 0)  # -inf: no more passages
            apart = np.abs(found - find().scores).max()
        if not apart < _TOLERANCE:
            raise UserError(f"the scores are {apart:.2g} apart: not the same BM25")
        return figures | {"passages": self.rows, "largest_difference": float(apart)}
