"""`qac bench encode`: passages to vectors, beside sentence-transformers on the same model."""

import dataclasses
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.hardware import PRECISIONS_MEAN
from qac_jax.hub import names
from qac_jax.inference.settings import PRECISIONS


_TOLERANCE = 1e-4
_HALF_TOLERANCE = 0.03  # of vectors of length one, products being of bfloat16 or int8 numbers
_SLICE = 1024  # texts tokenised while those before are encoded
_BATCH, _GPU_BATCH = 32, 512  # texts of the peer's batches: its default, and for a GPU
_SHAPES = {"minilm": (6, 384), "base": (12, 768)}  # layers, width; both have 12 heads


@dataclasses.dataclass(frozen=True)
class Encode:
    """Passages/s of `qac embed` (from text, tokenising included), and over sentence-transformers.

    Both read the same real passages, of their own lengths. Repetitions alternate, figures are
    medians; the benchmark fails if the vectors differ.
    """

    EXAMPLE = "qac bench encode --passages 512"

    corpus: str = option("numpy,scipy", "Python packages whose documentation is read")
    model: str = option("", "encoder's folder ('': MiniLM)")
    shape: str = option(
        "", "random weights of this shape instead of a model", choices=("", *_SHAPES)
    )
    passages: int = option(512, "passages of the corpus, evenly spread", at_least=1)
    precision: str = option(
        "auto", f"ours, and the peer's by autocast ({PRECISIONS_MEAN})", choices=PRECISIONS
    )
    repetitions: int = option(7, "repetitions of each side", at_least=1)
    peer: str = option(
        "sentence_transformers",
        "the peer's setting; flash: in float16 without padding (a GPU, flash-attn)",
        choices=("sentence_transformers", "flash"),
    )

    def run(self) -> dict[str, Any]:
        texts = peer.passages(self.corpus, self.passages)
        peer.torch()
        if not self.shape:
            return self._measured(texts, self.model or names.shipped_folder("minilm"))
        with tempfile.TemporaryDirectory() as folder:
            return self._measured(texts, _random_encoder(Path(folder) / "model", self.shape))

    def _measured(self, texts: list[str], folder: str) -> dict[str, Any]:
        from qac_jax.inference.encoder import Encoder
        from qac_jax.inference.settings import Inference
        from qac_jax.processes import prefetched

        encoder = Encoder.load(folder, inference=Inference(self.precision))
        on = peer.device()
        sentences, settings = peer.package("sentence_transformers"), dict[str, Any]()
        if flash := self.peer == "flash":
            if on != "cuda" or not importlib.util.find_spec("flash_attn"):
                raise UserError("--peer flash needs a GPU and: pip install flash-attn")
            settings = {"dtype": "float16", "attn_implementation": "flash_attention_2"}
        model = sentences.SentenceTransformer(folder, device=on, model_kwargs=settings)

        def ours() -> np.ndarray:
            slices = [texts[start : start + _SLICE] for start in range(0, len(texts), _SLICE)]
            rows = prefetched(encoder.tokenize, slices)
            return np.concatenate([encoder.encode_tokens(part) for part in rows])

        def theirs() -> np.ndarray:
            with peer.halved("float32" if flash else self.precision):
                size = _GPU_BATCH if on == "cuda" else _BATCH
                return np.asarray(model.encode(texts, batch_size=size, show_progress_bar=False))

        apart = float(np.abs(ours() - theirs()).max())
        half = encoder.module.runtime.dtype != "float32" or self.precision == "int8"
        tolerance = _HALF_TOLERANCE if half else _TOLERANCE
        if not apart <= tolerance:
            raise UserError(f"the vectors are {apart:.2g} apart: not the same model")
        sides = {"qac_jax": ours, "sentence_transformers": theirs}
        figures = peer.compared(sides, len(texts), "passages", self.repetitions)
        return figures | {"largest_difference": apart}


def _random_encoder(folder: Path, shape: str) -> str:
    """An encoder of this shape in a new folder, with random weights."""
    from qac_jax.hub import backbones, huggingface
    from qac_jax.models.bert import BertConfig
    from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
    from qac_jax.text import tokenizers

    layers, width = _SHAPES[shape]
    sizes: Any = {"num_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    backbone = BertConfig(tokenizers.load().vocab_size, num_heads=12, **sizes)
    module = DualEncoder(DualEncoderConfig(backbone, pooling="mean", normalize=True))
    params = {"params": backbones.new_parameters(module)}
    tokenizer = tokenizers.ASSETS / tokenizers.SHIPPED
    return os.fspath(huggingface.save(folder, module, params, tokenizer=tokenizer))
