"""Passages to texts with a T5: its folder, its tokenizer, and the loop that keeps devices busy.

    generator = Generator.load("out/generator", Decoding(max_tokens=64, samples=5), seed=0)
    found = generator.generate([Request("p1", "text2query: Copper is a metal.")])
    found[0]      # [Said(text="what is copper", score=-0.7), …], one for each sample

Scores are the mean log-likelihood of a token, the end included.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qac_jax.data.form import form_of
from qac_jax.errors import UserError, nearest
from qac_jax.hub import huggingface, parameters
from qac_jax.models.decoding.decode import Decoded, Decoding, decode
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import Tokenizer


PRECISIONS = ("auto", "float32", "bfloat16")

# Texts of one batch on one device: enough rows for fast matrix products.
_TEXTS = {"cpu": 32}
_MANY_TEXTS = 512
# Batches that are under way while the host prepares the next ones.
_AHEAD = 2
# Every length is a program to compile, and reading is little of the work: few lengths.
_LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
_STEP = 256

Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Request:
    """What is read: `before` + text + `after`; and how much is said at most (0: as much as any).

    `name` is what the noise of sampling depends on, beside the seed.
    """

    name: str
    text: str
    before: str = ""
    after: str = ""
    max_tokens: int = 0


class Said(NamedTuple):
    """One continuation."""

    text: str
    score: float


class Batch(NamedTuple):
    """Which requests go together, and the shape they are padded to."""

    rows: np.ndarray
    size: int
    length: int


@dataclasses.dataclass(frozen=True)
class Generator:
    """A T5 with all that it needs to read and write texts. Make it with `load`."""

    module: T5
    params: Any  # on the devices
    tokenizer: Tokenizer
    settings: Decoding
    mesh: Mesh
    seed: int = 0
    max_input: int = 512
    texts: int = 0  # a batch and device

    @classmethod
    def load(
        cls,
        place: str | os.PathLike[str],
        settings: Decoding,
        *,
        seed: int = 0,
        max_input: int = 512,
        precision: str = "auto",
        texts: int = 0,
    ) -> Generator:
        """From an artefact of ours or a Hugging Face folder."""
        folder = huggingface.resolve(place)
        module, variables = huggingface.load(folder, Runtime(dtype=precision_here(precision)))
        if not isinstance(module, T5):
            raise UserError(
                f"{place} is a {type(module).__name__}, which reads texts but cannot write any; "
                "give the folder of a T5"
            )
        inside = folder / parameters.TOKENIZER
        tokenizer = tokenizers.load(os.path.normpath(inside if inside.is_dir() else folder))
        return cls.of(
            module,
            variables["params"],
            tokenizer,
            settings,
            seed=seed,
            max_input=max_input,
            texts=texts,
        )

    @classmethod
    def of(
        cls,
        module: T5,
        params: Any,
        tokenizer: Tokenizer,
        settings: Decoding,
        *,
        devices: Sequence[Any] | None = None,
        **options: Any,
    ) -> Generator:
        """From a module and its parameters; on all devices of this process, or on these."""
        _check(module, tokenizer)
        devices = jax.local_devices() if devices is None else list(devices)
        mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
        # Every step reads all weights: in half precision, half the bytes.
        dtype = module.runtime.compute_dtype
        params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params)
        pieces = tokenizer.vocab_size
        return cls(
            module=module,
            params=jax.device_put(params, NamedSharding(mesh, PartitionSpec())),
            tokenizer=tokenizer,
            settings=dataclasses.replace(settings, pieces=pieces),
            mesh=mesh,
            **options,
        )

    @functools.cached_property
    def _form(self) -> tuple[list[int], list[int]]:
        form = form_of(self.tokenizer)
        return list(form["before"]), list(form["after"])

    def read(self, requests: Sequence[Request]) -> list[list[int]]:
        """The ids of each request with special tokens; of long ones the text is cut, not the words
        around it."""
        first, last = self._form
        room = self.max_input - len(first) - len(last)
        whole = self.tokenizer.encode_batch([r.before + r.text + r.after for r in requests])
        found = []
        for request, ids in zip(requests, whole, strict=True):
            if len(ids) > room:
                after = self.tokenizer.encode(request.after)
                kept = max(room - len(after), 0)
                ids = [*self.tokenizer.encode(request.before + request.text)[:kept], *after][:room]
            found.append([*first, *ids, *last])
        return found

    def generate(
        self, requests: Sequence[Request], *, report: Report | None = None
    ) -> list[list[Said]]:
        """The continuations of each request, in order.

        `report` hears how many more requests are done, and how many tokens were said in them.
        """
        rows = self.read(requests)
        found: list[list[Said]] = [[] for _ in requests]
        waiting: collections.deque[tuple[Batch, Decoded]] = collections.deque()

        def take() -> None:
            batch, decoded = waiting.popleft()
            tokens, lengths, scores = (np.asarray(part) for part in decoded)
            for place, row in enumerate(batch.rows):
                found[row] = self._said(tokens[place], lengths[place], scores[place])
            if report is not None:
                report(len(batch.rows), int(lengths[: len(batch.rows)].sum()))

        for batch in self.batches([len(row) for row in rows]):
            waiting.append((batch, self.start(requests, rows, batch)))
            if len(waiting) >= _AHEAD:
                take()
        while waiting:
            take()
        return found

    def batches(self, lengths: Sequence[int]) -> Iterator[Batch]:
        """How `generate` cuts the work: the longest first, as they need the most memory."""
        size = self.texts or _TEXTS.get(jax.default_backend(), _MANY_TEXTS)
        size *= self.mesh.size
        order = np.argsort(-np.asarray(lengths), kind="stable")
        while size // 2 >= max(len(order), self.mesh.size):
            size //= 2  # few texts; otherwise every batch has the same number of rows
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            yield Batch(rows, size, _rounded(lengths[rows[0]], self.max_input))

    def start(
        self, requests: Sequence[Request], rows: Sequence[Sequence[int]], batch: Batch
    ) -> Decoded:
        """One padded batch; its texts are cut over the devices. Does not wait for the end."""
        ids = np.full((batch.size, batch.length), self.tokenizer.pad_id, np.int32)
        lengths = np.ones(batch.size, np.int32)
        # Rows without a text end at once.
        limits = np.zeros(batch.size, np.int32)
        keys = np.zeros((batch.size, 2), np.uint32)
        for place, row in enumerate(batch.rows):
            ids[place, : len(rows[row])] = rows[row]
            lengths[place] = len(rows[row])
            limits[place] = requests[row].max_tokens or self.settings.max_tokens
            keys[place] = _bits(self.seed, requests[row].name)
        cut = NamedSharding(self.mesh, PartitionSpec("data"))
        arrays = jax.device_put((ids, lengths, limits, keys), cut)
        return _program(self.module, self.settings, self.mesh)(self.params, *arrays)

    def _said(self, tokens: np.ndarray, lengths: np.ndarray, scores: np.ndarray) -> list[Said]:
        settings, end = self.settings, self.module.config.eos_id
        # A beam's score is divided by a power of the length already.
        power = 1.0 - settings.length_penalty if settings.method == "beam" else 1.0
        found = []
        for ids, length, score in zip(tokens.tolist(), lengths.tolist(), scores, strict=True):
            ids = [i for i in ids[:length] if i != end]
            mean = float(score) / max(length, 1) ** power
            found.append(Said(self.tokenizer.decode(ids).strip(), round(mean, 4)))
        return found


@functools.lru_cache(maxsize=8)
def _program(module: T5, settings: Decoding, mesh: Mesh) -> Callable[..., Decoded]:
    """Compiled once for all generators of one shape.

    Every device runs a loop of its own and stops when its own rows have ended: nothing is
    exchanged, so nobody waits for the longest text of another device.
    """

    def run(params: Any, ids: Any, lengths: Any, limits: Any, keys: Any) -> Decoded:
        return decode(module, {"params": params}, ids, lengths, settings, limits=limits, keys=keys)

    rows = PartitionSpec("data")
    cut = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(PartitionSpec(), rows, rows, rows, rows),
        out_specs=rows,
        check_vma=False,
    )
    return jax.jit(cut)


def _bits(seed: int, name: str) -> np.ndarray:
    """64 bits that depend on seed and name alone."""
    digest = hashlib.blake2b(f"{seed}\n{name}".encode(), digest_size=8).digest()
    return np.frombuffer(digest, np.uint32)


def _rounded(length: int, limit: int) -> int:
    """The length that a text of `length` tokens is padded to; `limit` is the longest there is."""
    fitting = next((end for end in _LENGTHS if length <= end), -(-length // _STEP) * _STEP)
    return max(min(fitting, limit), length)


def _check(module: T5, tokenizer: Tokenizer) -> None:
    config = module.config
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} pieces and the model "
            f"{config.vocab_size} rows for them; give the tokenizer it was trained with"
        )
    end = tokenizer.special("eos" if tokenizer.has("eos") else "sep")
    if config.eos_id != end:
        raise UserError(
            f"the model ends texts with token {config.eos_id}, the tokenizer {tokenizer.name} with "
            f"{end} ({tokenizer.token(end)}); give the tokenizer it was trained with"
        )


def precision_here(name: str) -> str:
    """The dtype of matrix products: by default bf16 where there are units for it."""
    if name not in PRECISIONS:
        raise UserError(f"precision={name!r} is not known; {nearest(name, PRECISIONS)}")
    if name != "auto":
        return name
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
