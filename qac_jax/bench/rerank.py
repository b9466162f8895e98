"""`qac bench rerank`: pairs scored by a cross-encoder, against sentence-transformers."""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.formats.registry import DOCUMENTS


_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Rerank:
    """Pairs/s of a cross-encoder (from text, tokenising included), over sentence-transformers.

    A BERT of the given shape with random weights, the same on both sides, reads pairs of real
    texts: the first sentence of a passage with passages near it. Repetitions alternate, figures
    are medians; the benchmark fails if the scores differ.
    """

    EXAMPLE = "qac bench rerank --corpus data/scifact --format beir --queries 16"

    corpus: str = option("numpy,scipy", "corpus, in --format")
    format: str = option(
        "python_docs", "format of the corpus, as in `qac prepare`", choices=DOCUMENTS.names()
    )
    queries: int = option(16, "number of queries")
    candidates: int = option(32, "candidates per query")
    layers: int = option(6, "layers of the cross-encoder")
    width: int = option(384, "width of the cross-encoder")
    max_length: int = option(160, "maximum length of a pair in tokens")
    tokens: int = option(0, "tokens per batch, padding included (0: as `qac search --reranker`)")
    repetitions: int = option(5, "repetitions of each side")
    threads: int = option(0, "threads of PyTorch (0: one per core)")

    def run(self) -> dict[str, Any]:
        queries, passages = self._pairs()
        with tempfile.TemporaryDirectory() as scratch:
            folder = self._model(Path(scratch) / "model")
            sides = {
                "qac_jax": self._ours(folder, queries, passages),
                "sentence_transformers": self._theirs(folder, queries, passages),
            }
            # The first call compiles and is not measured.
            scores = {name: np.asarray(score(), np.float64) for name, score in sides.items()}
            apart = float(np.abs(scores["qac_jax"] - scores["sentence_transformers"]).max())
            if not apart <= _TOLERANCE:
                raise UserError(
                    f"the scores are {apart:.2g} apart, more than {_TOLERANCE}; the two sides do "
                    "not compute the same, so their speeds cannot be compared"
                )
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(self.repetitions):
                for name, score in sides.items():
                    began = time.perf_counter()
                    score()
                    seconds[name].append(time.perf_counter() - began)
        ratios = [
            theirs / ours
            for ours, theirs in zip(
                seconds["qac_jax"], seconds["sentence_transformers"], strict=True
            )
        ]
        figures: dict[str, Any] = {
            f"{name}_pairs_per_second": len(queries) / statistics.median(times)
            for name, times in seconds.items()
        }
        return figures | {
            "ratio": statistics.median(ratios),
            "ratio_range": f"{min(ratios):.2f} to {max(ratios):.2f}",
            "largest_difference": apart,
            "spread_of_scores": float(scores["qac_jax"].std()),
            "pairs": len(queries),
            "cores": os.cpu_count(),
        }

    def _pairs(self) -> tuple[list[str], list[str]]:
        from qac_jax.formats import documents

        texts: list[str] = []
        for document in documents.read(self.format, self.corpus, skip_bad=None):
            texts += [p.text for p in document.passages] or [document.text]
            texts += [s.text for s in document.sections]
            if len(texts) > 64 * self.queries * self.candidates:
                break
        texts = [" ".join(text.split()) for text in texts if len(text.split()) > 12]
        if len(texts) < self.queries + self.candidates:
            raise UserError(
                f"{self.corpus} holds {len(texts)} passages of 13 words or more; expected at "
                f"least {self.queries + self.candidates}"
            )
        queries, passages = [], []
        for number in range(self.queries):
            first = number * (len(texts) - self.candidates) // self.queries
            question = " ".join(texts[first].split()[:9])
            queries += [question] * self.candidates
            passages += texts[first : first + self.candidates]
        return queries, passages

    def _model(self, folder: Path) -> Path:
        import jax
        import jax.numpy as jnp

        from qac_jax.hub import huggingface
        from qac_jax.models.bert import BertConfig
        from qac_jax.models.encoders import CrossEncoder
        from qac_jax.text import tokenizers

        config = BertConfig(
            vocab_size=tokenizers.load().vocab_size,
            hidden_size=self.width,
            num_layers=self.layers,
            num_heads=max(self.width // 32, 1),
            intermediate_size=4 * self.width,
            pooler=True,
        )
        module = CrossEncoder(config, labels=1)
        shapes = (jnp.zeros((1, 4), jnp.int32), jnp.full(1, 4, jnp.int32))
        variables = jax.jit(module.init)(jax.random.key(0), *shapes)
        tokenizer = tokenizers.ASSETS / tokenizers.SHIPPED
        return huggingface.save(folder, module, variables, tokenizer=tokenizer)

    def _ours(
        self, folder: Path, queries: Sequence[str], passages: Sequence[str]
    ) -> Callable[[], np.ndarray]:
        from qac_jax.inference.reranker import Reranker
        from qac_jax.inference.settings import Inference, RerankerOptions

        # Truncated as Hugging Face does it, so that both sides read the same tokens.
        options = RerankerOptions(self.max_length, "longest_first")
        reranker = Reranker.load(folder, options, Inference(batch_tokens=self.tokens))
        return lambda: reranker.score(queries, passages)

    def _theirs(
        self, folder: Path, queries: Sequence[str], passages: Sequence[str]
    ) -> Callable[[], np.ndarray]:
        try:
            import sentence_transformers
            import torch
        except ImportError as error:
            raise UserError(
                f"the peer of this benchmark is missing ({error.name}); "
                "pip install 'qac_jax[bench]'"
            ) from error
        torch.set_num_threads(self.threads or os.cpu_count() or 1)
        model = sentence_transformers.CrossEncoder(
            os.fspath(folder),
            device="cpu",
            max_length=self.max_length,
            activation_fn=torch.nn.Identity(),
        )
        pairs = list(zip(queries, passages, strict=True))
        return lambda: model.predict(pairs, show_progress_bar=False)
