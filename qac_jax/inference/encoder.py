"""Texts to vectors: an encoder's folder and its tokenizer, on all devices.

encoder = Encoder.load("out/retriever")
vectors = encoder.encode(["a passage", "another"])
questions = encoder.encode(["a question"], side="query")
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.data.form import Form, form_of, prompt_tokens, title_and_body
from qac_jax.errors import UserError, nearest, sound
from qac_jax.hub import huggingface, names, sentence_transformers, weights
from qac_jax.inference import engines
from qac_jax.inference.runner import Batch, Hidden, Runner, check_finite, dtype_of, padded
from qac_jax.inference.settings import AS_IN_FOLDER, BY_DEVICE, EncoderOptions, Inference
from qac_jax.models import heads
from qac_jax.models.encoders import SIDES, DualEncoder
from qac_jax.models.layers import Runtime
from qac_jax.text.tokenizers import SEGMENTS, Tokenizer, text_of


Tokens = Sequence[int]

_NO_PROMPTS: Mapping[str, str] = {}


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A dual encoder with all that it needs to read texts. Make it with `load`."""

    module: DualEncoder
    runner: Runner
    tokenizer: Tokenizer
    limits: dict[str, int]  # tokens of a query and of a passage, special tokens included
    prompts: dict[str, str]
    hidden: Mapping[str, Hidden] | None = None  # of each side, where JAX does not compute it

    @classmethod
    def load(
        cls,
        place: str | os.PathLike[str],
        options: EncoderOptions = AS_IN_FOLDER,
        inference: Inference = BY_DEVICE,
        prompts: Mapping[str, str] = _NO_PROMPTS,
    ) -> Self:
        """From a folder of any kind, or its name; `prompts` replace those of the folder."""
        folder = names.folder(place)
        wanted = {"yes": True, "no": False}.get(options.normalize)
        module, variables = huggingface.load_dual_encoder(
            folder,
            runtime=Runtime(dtype=dtype_of(inference.precision, graphs=True), scan=True),
            pooling=options.pooling or None,
            normalize=wanted if wanted is not None else _cosine(folder),
        )
        assert isinstance(module, DualEncoder)
        parts = module, variables["params"], names.tokenizer_of(folder)
        made = cls.of(*parts, options, inference, prompts, folder=folder)
        if not (engine := engines.of(folder, inference.precision)):
            return made
        places = {s: sentence_transformers.transformer_folder(folder, s) for s in made.limits}
        loaded = {place: engines.load(place, engine) for place in {*places.values()}}
        hidden = {side: loaded[place] for side, place in places.items()}
        return dataclasses.replace(made, hidden=hidden)

    @classmethod
    def remembered(cls, known: Mapping[str, Any], place: str | os.PathLike[str] = "") -> Self:
        """The encoder of an artefact of vectors (see `memory`); `place`: where it was moved."""
        with sound(f"what is stored of the encoder {known['path']}"):
            options, inference = EncoderOptions(**known["options"]), Inference(**known["inference"])
            prompts = known["prompts"]
        return cls.load(place or known["path"], options, inference, prompts)

    @classmethod
    def of(
        cls,
        module: DualEncoder,
        params: Any,
        tokenizer: Tokenizer,
        options: EncoderOptions = AS_IN_FOLDER,
        inference: Inference = BY_DEVICE,
        prompts: Mapping[str, str] = _NO_PROMPTS,
        *,
        folder: Path | None = None,
    ) -> Self:
        """From a module and its parameters; `folder` may have a maximum length of texts."""
        if options.title:
            module = module.clone(config=dataclasses.replace(module.config, title=options.title))
        config = module.config
        longest = config.backbone.max_length
        folder_length = folder and sentence_transformers.max_length(folder)
        trained = {"query": config.query_length, "passage": config.passage_length}
        limits = {
            side: options.max_length or min(own or folder_length or longest, longest)
            for side, own in trained.items()
        }
        if not 3 <= min(limits.values()) <= max(limits.values()) <= longest:
            raise UserError(
                f"max_length={options.max_length or min(limits.values())} does not suit the "
                f"encoder; expected 3 to {longest} tokens"
            )
        tokenizer.check_fits(config.backbone.vocab_size, "encoder")
        prompts = {"query": config.query_prompt, "passage": config.passage_prompt, **prompts}
        made = cls(module, Runner.of(params, inference), tokenizer, limits, prompts)
        return made.in_int8() if inference.precision == "int8" else made

    def in_int8(self) -> Self:
        """The same with the layers in int8."""
        from qac_jax.inference import int8

        config, hidden = self.module.config, dict[str, Hidden]()
        for tower, sides in self.towers.items():
            params = self.runner.params[tower]["backbone"]
            read = config.pooled_rows(max(self._skipped.values()))
            made = int8.encoder(config.backbone, params, self.samples(sides), read)
            hidden |= dict.fromkeys(sides, made)
        return dataclasses.replace(self, hidden=hidden)

    @property
    def towers(self) -> dict[str, tuple[str, ...]]:
        """The sides that each tower reads."""
        tied = self.module.config.tied
        return {"encoder": SIDES} if tied else {side: (side,) for side in SIDES}

    def samples(self, sides: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids and token types of passages that ship, by turns as texts of these sides."""
        from qac_jax.inference import int8

        for number, record in enumerate(int8.passages()):
            side = sides[number % len(sides)]
            text = self.passage_text(record) if side == "passage" else record["text"]
            ids = np.array(self.tokenize([text], side), np.int32)
            types = self._types(ids, side)
            yield ids[0], (np.zeros_like(ids) if types is None else types)[0]

    @property
    def width(self) -> int:
        return self.module.config.width

    def encode(
        self,
        texts: Sequence[str],
        side: str = "passage",
        *,
        advance: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """float32 [texts, width]. `advance` is called with the number of new rows."""
        return self.encode_tokens(self.tokenize(texts, side), side, advance=advance)

    def tokenize(self, texts: Sequence[str], side: str = "passage") -> list[list[int]]:
        """The ids of each text with its prompt and special tokens, truncated to the limit."""
        if side not in self.limits:
            raise UserError(f"side={side!r} is not known; {nearest(side, self.limits)}")
        if prompt := self.prompts[side]:
            texts = [prompt + text for text in texts]
        return [self.framed(ids, side) for ids in self.tokenizer.encode_batch(texts)]

    def framed(self, ids: Tokens, side: str = "passage") -> list[int]:
        """Ids with special tokens added, truncated to the limit."""
        form, limit = self._form, self.limits[side]
        if side == "passage" and self.module.config.title == SEGMENTS:
            both, _ = title_and_body(np.array(ids, np.int32), form, limit)
            return both.tolist()
        room = limit - len(form.before) - len(form.after)
        return [*form.before, *ids[:room], *form.after]

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
        """As `encode`, for ids that include special tokens."""
        return self.runner.rows(
            self.batches(rows),
            lambda batch: self.apply(*padded(rows, batch, self.tokenizer.pad_id), side),
            np.empty((len(rows), self.width), np.float32),
            advance,
        )

    def encode_windows(
        self,
        rows: Sequence[Tokens],
        size: int,
        side: str = "passage",
        *,
        advance: Callable[[int], None] | None = None,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The vectors of texts, and of each those of its windows, float16 [windows, width]."""
        lengths = np.array([len(row) for row in rows])
        counts = heads.window_counts(lengths, size, self._skipped[side])
        whole = np.empty((len(rows), self.width), np.float32)
        parts: list[np.ndarray] = [whole[:0]] * len(rows)

        def start(batch: Batch) -> jax.Array:
            return self.apply(*padded(rows, batch, self.tokenizer.pad_id), side, window=size)

        def take(batch: Batch, result: jax.Array) -> None:
            for row, vectors in zip(batch.rows.tolist(), np.asarray(result), strict=False):
                whole[row] = vectors[0]
                parts[row] = vectors[1 : 1 + counts[row]].astype(np.float16)
            if advance is not None:
                advance(len(batch.rows))

        self.runner.run(self.batches(rows), start, take)
        check_finite(whole)
        return whole, parts

    def batches(self, rows: Sequence[Tokens]) -> list[Batch]:
        lengths = [len(row) for row in rows]
        return list(self.runner.batches(lengths, max(self.limits.values())))

    def apply(
        self, ids: np.ndarray, lengths: np.ndarray, side: str = "passage", window: int = 0
    ) -> jax.Array:
        """The vectors of one padded batch. With `window`, also those of the parts of each text that
        have this many tokens."""
        types = self._types(ids, side)
        hidden = None
        if self.hidden is not None:
            given = np.zeros_like(ids) if types is None else types
            hidden = self.hidden[side](ids, given, lengths)
        program = _program(self.module)
        placed = self.runner.placed((ids, lengths, types, hidden))
        return program(self.runner.params, *placed, side, self._skipped[side], window)

    def _types(self, ids: np.ndarray, side: str) -> np.ndarray | None:
        """1 for the body, which follows the first separator; None: titles have no type."""
        if side != "passage" or self.module.config.title != SEGMENTS:
            return None
        ends = ids == self.tokenizer.sep_id
        return (ends.cumsum(axis=1) > ends).astype(np.int32)

    @functools.cached_property
    def _skipped(self) -> dict[str, int]:
        """How many of the first tokens of a text of each side are not pooled."""
        if self.module.config.include_prompt:
            return dict.fromkeys(self.prompts, 0)
        read = functools.partial(prompt_tokens, self.tokenizer, self._form)
        return {side: read(prompt) for side, prompt in self.prompts.items()}


def memory(
    place: str | os.PathLike[str],
    options: EncoderOptions,
    inference: Inference,
    prompts: Mapping[str, str],
) -> dict[str, Any]:
    """The encoder's description in an artefact of vectors, for `Encoder.remembered`."""
    return {
        "path": names.pinned(os.path.abspath(place)),
        "options": dataclasses.asdict(options),
        "inference": dataclasses.asdict(inference),
        "prompts": dict(prompts),
    }


@functools.lru_cache(maxsize=8)
def _program(module: DualEncoder) -> Callable[..., jax.Array]:
    """Compiled once for all encoders of one architecture: a run loads its encoder repeatedly."""

    def vectors(
        params: Any,
        ids: jax.Array,
        lengths: jax.Array,
        types: jax.Array | None,
        hidden: jax.Array | None,
        side: str,
        skip: int,
        window: int,
    ) -> jax.Array:
        how: Any = {"side": side, "skip": skip, "window": window, "hidden": hidden}
        encoded = module.apply({"params": params}, ids, lengths, types, **how)
        return jnp.asarray(encoded, jnp.float32)

    return jax.jit(vectors, static_argnums=(5, 6, 7))


def _cosine(folder: Path) -> bool | None:
    """True where the folder's similarity is the cosine: a dot product of normalised vectors."""
    file = folder / sentence_transformers.SETTINGS
    settings = weights.read_json(file) if file.is_file() else {}
    return True if settings.get("similarity_fn_name") == "cosine" else None
