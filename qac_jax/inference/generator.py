"""Passages to texts with a T5 or a pointer-generator, on all devices.

    generator = Generator.load("out/generator", Decoding(max_tokens=64, samples=5), seed=0)
    results = generator.generate([Request("p1", "text2query: Copper is a metal.")])
    results[0]      # [Generated(text="what is copper", score=-0.7), …], one for each sample

Scores are mean log-likelihoods of the tokens, the end token included.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jax.sharding import Mesh

from qac_jax.data.form import form_of
from qac_jax.errors import UserError
from qac_jax.hub import huggingface, names
from qac_jax.inference import refilling
from qac_jax.inference.runner import (
    Batch,
    Runner,
    by_copies,
    dtype_of,
    even_batches,
    padded,
    shardings,
)
from qac_jax.inference.settings import BY_DEVICE, Inference
from qac_jax.models.decoding.sampling import Decoded, Rules
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.decoding.slots import decode
from qac_jax.models.layers import Runtime
from qac_jax.models.pointer import Writer
from qac_jax.text.tokenizers import Tokenizer


# Texts of one batch on one device: enough rows for fast matrix products.
_ON_CPU, _ELSEWHERE = 32, 512
# Batches in flight: each needs memory for the caches of its texts.
_AHEAD = 2

Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Request:
    """The input `before` + text + `after`, and the most tokens to generate (0: `Decoding`'s).

    The noise of sampling depends on the seed and on `name`.
    """

    name: str
    text: str
    before: str = ""
    after: str = ""
    max_tokens: int = 0


class Generated(NamedTuple):
    """One generated text."""

    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class Generator:
    """A model with all that it needs to read and write texts. Make it with `load`."""

    module: Writer
    runner: Runner
    tokenizer: Tokenizer
    decoding: Decoding
    pieces: int  # ids from here on are not tokens of the vocabulary
    seed: int = 0
    max_input: int = 512

    @classmethod
    def load(
        cls,
        place: str | os.PathLike[str],
        decoding: Decoding,
        inference: Inference = BY_DEVICE,
        **options: Any,
    ) -> Self:
        """From an artefact of ours or a Hugging Face folder; options: see `of`."""
        folder = names.folder(place)
        module, variables = huggingface.load(folder, Runtime(dtype=dtype_of(inference.precision)))
        if not isinstance(module, Writer):
            raise UserError(
                f"{place} is a {type(module).__name__}, which cannot generate text; "
                "give the folder of a T5 or of a pointer-generator"
            )
        tokenizer = names.tokenizer_of(folder)
        return cls.of(module, variables["params"], tokenizer, decoding, inference, **options)

    @classmethod
    def of(
        cls,
        module: Writer,
        params: Any,
        tokenizer: Tokenizer,
        decoding: Decoding,
        inference: Inference = BY_DEVICE,
        *,
        devices: Sequence[Any] | None = None,
        partitions: int = 1,
        **options: Any,
    ) -> Self:
        """From a module and its parameters, on `devices` (default: all of this process), of which
        `partitions` share a copy of the model; options: seed, max_input."""
        config = module.config
        tokenizer.check_fits(config.vocab_size, "model")
        end = tokenizer.special("eos" if tokenizer.has("eos") else "sep")
        if config.eos_id != end:
            raise UserError(
                f"the model ends texts with token {config.eos_id}, the tokenizer {tokenizer.name} "
                f"with {end} ({tokenizer.token(end)}); give the tokenizer it was trained with"
            )
        # Every decoding step reads all weights: half precision halves the bytes.
        dtype = module.runtime.compute_dtype
        params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params)
        runner = Runner.of(
            params, inference, devices, partitions, functools.partial(shardings, module)
        )
        return cls(module, runner, tokenizer, decoding, tokenizer.vocab_size, **options)

    def read(self, requests: Sequence[Request]) -> list[list[int]]:
        """The ids of each request with special tokens.

        Where an input is too long the text is truncated, not `before` and `after`.
        """
        form = form_of(self.tokenizer)
        first, last = form["before"], form["after"]
        room = self.max_input - len(first) - len(last)
        whole = self.tokenizer.encode_batch([r.before + r.text + r.after for r in requests])
        rows = []
        for request, ids in zip(requests, whole, strict=True):
            if len(ids) > room:
                after = self.tokenizer.encode(request.after)
                kept = max(room - len(after), 0)
                ids = [*self.tokenizer.encode(request.before + request.text)[:kept], *after][:room]
            rows.append([*first, *ids, *last])
        return rows

    def generate(
        self, requests: Sequence[Request], *, report: Report | None = None
    ) -> list[list[Generated]]:
        """The generated texts of each request, in order.

        `report` is called with the numbers of requests done and of tokens generated for them.
        """
        rows = self.read(requests)
        results: list[list[Generated]] = [[] for _ in requests]

        def keep(row: int, tokens: np.ndarray, lengths: np.ndarray, scores: np.ndarray) -> None:
            results[row] = self._texts_of(tokens, lengths, scores)
            if report is not None:
                report(1, int(lengths.sum()))

        if self.decoding.method != "beam":
            texts = [
                refilling.Text(
                    ids, request.max_tokens or self.decoding.max_tokens, self._bits(request)
                )
                for request, ids in zip(requests, rows, strict=True)
            ]
            rules = Rules(self.decoding, self.module.config, self.pieces)
            sizes = {"pad": self.tokenizer.pad_id, "longest": self.max_input}
            refilling.generate(self.module, self.runner, rules, texts, keep, **sizes)
            return results

        def take(batch: Batch, decoded: Decoded) -> None:
            tokens, lengths, scores = (np.asarray(part) for part in decoded)
            for place, row in enumerate(batch.rows.tolist()):
                keep(row, tokens[place], lengths[place], scores[place])

        batches = self.batches([len(row) for row in rows])
        self.runner.run(batches, lambda b: self.start(requests, rows, b), take, ahead=_AHEAD)
        return results

    def batches(self, lengths: Sequence[int]) -> Iterator[Batch]:
        """The batches of `generate`: the longest first, as they need the most memory."""
        runner = self.runner
        return even_batches(
            lengths,
            runner.texts(_ON_CPU, _ELSEWHERE),
            tokens=runner.inference.batch_tokens * runner.copies,
            multiple=runner.copies,
            limit=self.max_input,
        )

    def start(
        self, requests: Sequence[Request], rows: Sequence[Sequence[int]], batch: Batch
    ) -> Decoded:
        """Starts one padded batch, without waiting for its result."""
        ids, lengths = padded(rows, batch, self.tokenizer.pad_id)
        # Rows without a text end at once.
        limits = np.zeros(batch.size, np.int32)
        keys = np.zeros((batch.size, 2), np.uint32)
        for place, row in enumerate(batch.rows):
            limits[place] = requests[row].max_tokens or self.decoding.max_tokens
            keys[place] = self._bits(requests[row])
        program = _program(self.module, self.decoding, self.pieces, self.runner.mesh)
        return program(self.runner.params, *self.runner.placed((ids, lengths, limits, keys)))

    def _bits(self, request: Request) -> np.ndarray:
        """64 bits that depend on the seed and the request's name alone."""
        named = f"{self.seed}\n{request.name}".encode()
        return np.frombuffer(hashlib.blake2b(named, digest_size=8).digest(), np.uint32)

    def _texts_of(
        self, tokens: np.ndarray, lengths: np.ndarray, scores: np.ndarray
    ) -> list[Generated]:
        decoding, end = self.decoding, self.module.config.eos_id
        # The score of a beam is already divided by a power of its length.
        power = 1.0 - decoding.length_penalty if decoding.method == "beam" else 1.0
        results = []
        for ids, length, score in zip(tokens.tolist(), lengths.tolist(), scores, strict=True):
            ids = [i for i in ids[:length] if i != end]
            mean = float(score) / max(length, 1) ** power
            results.append(Generated(self.tokenizer.decode(ids).strip(), round(mean, 4)))
        return results


@functools.lru_cache(maxsize=8)
def _program(module: Writer, decoding: Decoding, pieces: int, mesh: Mesh) -> Callable[..., Decoded]:
    """Compiled once for all generators of one architecture.

    Where copies are whole, none waits for the longest text of another.
    """

    def run(params: Any, ids: Any, lengths: Any, limits: Any, keys: Any) -> Decoded:
        variables = {"params": params}
        return decode(
            module, variables, ids, lengths, decoding, limits=limits, keys=keys, pieces=pieces
        )

    return by_copies(run, mesh)
