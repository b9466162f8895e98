"""Texts to vectors: an encoder's folder, its tokenizer, and the loop that keeps devices busy.

encoder = Encoder.load("out/retriever")
vectors = encoder.encode(["a passage", "another"])
questions = encoder.encode(["a question"], side="query")
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from qac_jax.data.building import form_of
from qac_jax.data.form import Form
from qac_jax.data.ranking import title_and_body
from qac_jax.errors import UserError, nearest
from qac_jax.hub import hf_config, huggingface, parameters, sentence_transformers
from qac_jax.inference import buckets
from qac_jax.models.encoders import DualEncoder
from qac_jax.models.layers import Runtime
from qac_jax.text import tokenizers
from qac_jax.text.titles import SEGMENTS, text_of
from qac_jax.text.tokenizers import Tokenizer


PRECISIONS = ("auto", "float32", "bfloat16")

# Tokens of one batch on one device: what fits a CPU's caches, and what fills a GPU.
_TOKENS = {"cpu": 4096}
_MANY_TOKENS = 65536
# Batches that are under way while the host prepares the next ones.
_AHEAD = 3

Tokens = Sequence[int]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an encoder's folder is used, where that is not what the folder says itself."""

    pooling: str = ""  # "": as the folder says
    normalize: bool | None = None
    title: str = ""  # its form, see text/titles.py
    max_length: int = 0  # tokens of a text, special ones included
    query_prompt: str | None = None
    passage_prompt: str | None = None
    precision: str = "auto"
    batch_tokens: int = 0  # on one device


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A dual encoder with all that it needs to read texts. Make it with `load`."""

    module: DualEncoder
    params: Any  # on the devices
    tokenizer: Tokenizer
    limits: dict[str, int]  # tokens of a query and of a passage, special ones included
    prompts: dict[str, str]
    batch_tokens: int
    mesh: jax.sharding.Mesh

    @classmethod
    def load(cls, place: str | os.PathLike[str], settings: Settings | None = None) -> Encoder:
        """From an artefact of ours, or a Hugging Face or sentence-transformers folder."""
        settings = settings or Settings()
        folder = huggingface.resolve(place)
        module, variables = huggingface.load_dual_encoder(
            folder,
            runtime=Runtime(dtype=_precision(settings.precision), scan=True),
            pooling=settings.pooling or None,
            normalize=settings.normalize if settings.normalize is not None else _cosine(folder),
        )
        assert isinstance(module, DualEncoder)
        return cls.of(module, variables["params"], tokenizer_of(folder), settings, folder)

    @classmethod
    def of(
        cls,
        module: DualEncoder,
        params: Any,
        tokenizer: Tokenizer,
        settings: Settings | None = None,
        folder: Path | None = None,
    ) -> Encoder:
        """From a module and its parameters; `folder` may say how long texts can be."""
        settings = settings or Settings()
        if settings.title:
            module = module.clone(config=dataclasses.replace(module.config, title=settings.title))
        longest = module.config.backbone.max_length
        config = module.config
        said = folder and sentence_transformers.max_length(folder)
        trained = {"query": config.query_length, "passage": config.passage_length}
        limits = {
            side: settings.max_length or min(own or said or longest, longest)
            for side, own in trained.items()
        }
        if not 3 <= min(limits.values()) <= max(limits.values()) <= longest:
            raise UserError(
                f"max_length={settings.max_length or min(limits.values())} does not suit the "
                f"encoder; expected 3 to {longest} tokens"
            )
        if tokenizer.vocab_size > module.config.backbone.vocab_size:
            raise UserError(
                f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} pieces and the encoder "
                f"{module.config.backbone.vocab_size} rows for them; give the tokenizer it was "
                "trained with"
            )
        mesh = jax.make_mesh(
            (jax.local_device_count(),),
            ("data",),
            (AxisType.Auto,),
            devices=jax.local_devices(),
        )
        prompts = {
            side: own if (own := getattr(settings, f"{side}_prompt")) is not None else theirs
            for side, theirs in (
                ("query", module.config.query_prompt),
                ("passage", module.config.passage_prompt),
            )
        }
        return cls(
            module=module,
            params=jax.device_put(params, NamedSharding(mesh, PartitionSpec())),
            tokenizer=tokenizer,
            limits=limits,
            prompts=prompts,
            batch_tokens=settings.batch_tokens or _TOKENS.get(jax.default_backend(), _MANY_TOKENS),
            mesh=mesh,
        )

    @property
    def width(self) -> int:
        """The number of dimensions of a vector."""
        return self.module.config.width

    def encode(
        self,
        texts: Sequence[str],
        side: str = "passage",
        *,
        advance: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """float32 [texts, width], in order. `advance` hears how many more are done."""
        return self.encode_tokens(self.tokenize(texts, side), side, advance=advance)

    def tokenize(self, texts: Sequence[str], side: str = "passage") -> list[list[int]]:
        """The ids of each text with its prompt and special tokens, cut at the limit."""
        if prompt := self.prompts[side]:
            texts = [prompt + text for text in texts]
        return [self.framed(ids, side) for ids in self.tokenizer.encode_batch(texts)]

    def framed(self, ids: Tokens, side: str = "passage") -> list[int]:
        """Ids without special tokens as the encoder reads them."""
        tokenizer, limit = self.tokenizer, self.limits[side]
        if side == "passage" and self.module.config.title == SEGMENTS:
            both, _ = title_and_body(np.array(ids, np.int32), self._form, limit)
            return both.tolist()
        return [tokenizer.cls_id, *ids[: limit - 2], tokenizer.sep_id]

    @functools.cached_property
    def _form(self) -> Form:
        return Form(**form_of(self.tokenizer), crop="right")

    def passage_text(self, record: Mapping[str, Any]) -> str:
        """A passage with its title, as the encoder was trained to read it."""
        return text_of(self.tokenizer, record, self.module.config.title)

    def encode_tokens(
        self,
        rows: Sequence[Tokens],
        side: str = "passage",
        *,
        advance: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """The same for ids that have their special tokens already."""
        vectors = np.empty((len(rows), self.width), np.float32)
        waiting: collections.deque[tuple[buckets.Batch, jax.Array]] = collections.deque()

        def take() -> None:
            batch, found = waiting.popleft()
            vectors[batch.rows] = np.asarray(found)[: len(batch.rows)]
            if advance is not None:
                advance(len(batch.rows))

        for batch in self.batches(rows):
            # JAX computes in the background: the host pads the next batches meanwhile.
            waiting.append((batch, self.apply(*padded(rows, batch, self.tokenizer.pad_id), side)))
            if len(waiting) >= _AHEAD:
                take()
        while waiting:
            take()
        return vectors

    def batches(self, rows: Sequence[Tokens]) -> Sequence[buckets.Batch]:
        """How `encode_tokens` cuts the work."""
        devices = self.mesh.size
        return list(
            buckets.batches(
                [len(row) for row in rows],
                self.batch_tokens * devices,
                multiple=devices,
                limit=max(self.limits.values()),
            )
        )

    def apply(self, ids: np.ndarray, lengths: np.ndarray, side: str = "passage") -> jax.Array:
        """One padded batch; its rows are cut over the devices."""
        cut = NamedSharding(self.mesh, PartitionSpec("data"))
        run = _program(self.module, self.tokenizer.sep_id)
        return run(self.params, *jax.device_put((ids, lengths), cut), side)


@functools.lru_cache(maxsize=8)
def _program(module: DualEncoder, separator: int) -> Callable[..., jax.Array]:
    """Compiled once for all encoders of one shape: a run loads its encoder more than once."""

    def vectors(params: Any, ids: jax.Array, lengths: jax.Array, side: str) -> jax.Array:
        types = None
        if side == "passage" and module.config.title == SEGMENTS:
            # The body is what follows the first separator.
            ends = ids == separator
            types = (jnp.cumsum(ends, axis=1) > ends).astype(jnp.int32)
        found = module.apply({"params": params}, ids, lengths, types, side=side)
        return jnp.asarray(found, jnp.float32)

    return jax.jit(vectors, static_argnums=3)


def padded(rows: Sequence[Tokens], batch: buckets.Batch, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids [size, length], lengths [size]) of one batch; rows beyond its texts are empty ones."""
    ids = np.full((batch.size, batch.length), pad, np.int32)
    lengths = np.ones(batch.size, np.int32)
    for place, row in enumerate(batch.rows):
        tokens = rows[row]
        ids[place, : len(tokens)] = tokens
        lengths[place] = len(tokens)
    return ids, lengths


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer that lies with an encoder: in its folder, or where its kind keeps it."""
    usual = (parameters.TOKENIZER, ".", "0_Transformer", "passage")
    for name in usual:
        place = folder / name
        if any((place / file).is_file() for file in huggingface.TOKENIZER_FILES):
            return tokenizers.load(os.path.normpath(place))
    raise UserError(
        f"{folder} holds no tokenizer; copy {huggingface.TOKENIZER_FILES[0]} of the model into it"
    )


def _precision(name: str) -> str:
    if name not in PRECISIONS:
        raise UserError(f"precision={name!r} is not known; {nearest(name, PRECISIONS)}")
    if name != "auto":
        return name
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def _cosine(folder: Path) -> bool | None:
    """True where a folder compares by cosine: a dot product of normalised vectors."""
    file = folder / sentence_transformers.SETTINGS
    if not file.is_file():
        return None
    return True if hf_config.read_json(file).get("similarity_fn_name") == "cosine" else None
