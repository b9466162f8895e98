"""The likelihood of spans given their document, under a T5 (QExt-PLM of AugTriever).

A span's score is the sum of its tokens' log-probabilities, and of the padding's up to the longest
span of the batch ("padded"): so the released code has it, and only so are short spans unlikely, as
in the paper's Table 4 (79.7 for eight words, 180.6 for the shortest). "sum" and "mean" are without
padding; by "sum" a shortest span nearly always wins.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from qac_jax.data.form import form_of
from qac_jax.inference.generator import Generator
from qac_jax.inference.runner import Batch, by_copies, padded
from qac_jax.inference.settings import BY_DEVICE, USUAL_SPANS, Inference, LikelihoodOptions
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.pointer import Writer
from qac_jax.models.t5 import shift_right


# Documents of one batch on one device.
_ON_CPU, _ELSEWHERE = 16, 64
# Every length is a program to compile.
_STEP = 8


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """log p(span | document) under a T5."""

    generator: Generator
    options: LikelihoodOptions = USUAL_SPANS

    @classmethod
    def load(
        cls,
        place: str | os.PathLike[str],
        options: LikelihoodOptions = USUAL_SPANS,
        inference: Inference = BY_DEVICE,
    ) -> Self:
        """With the T5 of a folder or of an artefact."""
        return cls(Generator.load(place, Decoding(), inference), options)

    def __call__(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        tokenizer = self.generator.tokenizer
        form = form_of(tokenizer)
        room = self.options.document_tokens - len(form["before"]) - len(form["after"])
        whole = tokenizer.encode_batch(list(documents))
        return self.of([[*form["before"], *ids[:room], *form["after"]] for ids in whole], spans)

    def of(self, read: Sequence[Sequence[int]], spans: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The same for inputs that are ids, special tokens included."""
        options, runner, tokenizer = self.options, self.generator.runner, self.generator.tokenizer
        tokens = iter(tokenizer.encode_batch([span for of in spans for span in of]))
        targets = [[next(tokens)[: options.span_tokens] for _ in of] for of in spans]
        count = max(map(len, spans), default=0)
        if not count:
            return [np.zeros(0) for _ in spans]
        longest = max(len(ids) for of in targets for ids in of)
        width = min(options.span_tokens, -(-max(longest, 1) // _STEP) * _STEP)
        length = min(options.document_tokens, -(-max(map(len, read)) // 32) * 32)
        size = runner.texts(_ON_CPU, _ELSEWHERE)
        program = _program(self.generator.module, runner.mesh)
        results: list[np.ndarray] = []

        def start(batch: Batch) -> tuple[np.ndarray, jax.Array]:
            ids, lengths = padded(read, batch, tokenizer.pad_id)
            empty: list[list[int]] = [[]] * count
            flat = [ids for row in batch.rows for ids in [*targets[row], *empty][:count]]
            every = Batch(np.arange(len(flat)), size * count, width)
            words, _ = padded(flat, every, tokenizer.pad_id)
            sizes = np.zeros(size * count, np.int32)
            sizes[: len(flat)] = [len(ids) for ids in flat]
            limits = np.full_like(sizes, longest) if options.likelihood == "padded" else sizes
            spans = words.reshape(size, count, width), limits.reshape(size, count)
            arrays = runner.placed((ids, np.maximum(lengths, 1), *spans))
            return sizes.reshape(size, count), program(runner.params, *arrays)

        def take(batch: Batch, computed: tuple[np.ndarray, jax.Array]) -> None:
            sizes, total = computed[0], np.asarray(computed[1], np.float64)
            if options.likelihood == "mean":
                total = total / np.maximum(sizes, 1)
            # An empty span has the likelihood 1, but must not win.
            total = np.where(sizes > 0, total, -np.inf)
            rows = zip(total, batch.rows, strict=False)
            results.extend(scores[: len(targets[row])] for scores, row in rows)

        starts = range(0, len(read), size)
        places = (np.arange(start, min(start + size, len(read))) for start in starts)
        runner.run((Batch(rows, size, length) for rows in places), start, take)
        return results


@functools.lru_cache(maxsize=4)
def _program(module: Writer, mesh: Mesh) -> Callable[..., jax.Array]:
    """Sums of log-probabilities [B, S] over the first `limits` [B, S] tokens of spans [B, S, T]."""

    def sums(
        params: Any, ids: jax.Array, lengths: jax.Array, spans: jax.Array, limits: jax.Array
    ) -> jax.Array:
        size, count, width = spans.shape
        variables = {"params": params}
        memory = module.apply(variables, ids, lengths, method="encode")
        shifted = shift_right(spans, module.config.start_id).reshape(size, count * width)
        counted = (jnp.arange(width) < limits[..., None]).reshape(size, count * width)
        targets = spans.reshape(size, count * width)
        arguments = (shifted, targets, counted, memory, lengths, count)
        each = module.apply(variables, *arguments, method="counted_likelihood")
        return each.reshape(spans.shape).sum(-1)

    return by_copies(sums, mesh)
