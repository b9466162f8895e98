"""`qac bench generate`: new tokens/s of a T5, against transformers' `generate`, or of any generator
with continuous batching against whole batches."""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.inference.settings import PRECISIONS


if TYPE_CHECKING:
    from qac_jax.inference.buckets import Batch
    from qac_jax.inference.generator import Generator, Request


# (width, inner width, layers of encoder and decoder each, heads); 64 numbers a head.
_SHAPES = {"tiny": (128, 256, 2, 2), "small": (512, 2048, 6, 8), "base": (768, 3072, 12, 12)}
_ROWS = 32128
# MS MARCO's passages and the paper's queries for each.
_CORPUS, _QUERIES = 8_841_823, 5
_CHECKED = 8
_ROUNDED = 1e-3  # a draw may change with the last bit of its scores
PEERS = ("transformers", "batches", "none")


@dataclasses.dataclass(frozen=True)
class Generate:
    """New tokens/s of `qac generate` (from text to text), and over transformers' `generate`.

    Both have the same random weights and read the same real passages, sorted by length. As random
    weights hardly ever end a text, both are made to say all `max_tokens`: the work is the same.
    Repetitions alternate, figures are medians; the benchmark fails if greedy texts differ.

    With `--generator` texts end by themselves; the peer are then batches of ours that wait for
    their longest text.
    """

    EXAMPLE = "qac bench generate --passages 64 --repetitions 3"

    corpus: str = option("numpy,scipy", "corpus, in --format")
    format: str = option(
        "python_docs", "format of the corpus, as in `qac prepare`", choices=DOCUMENTS.names()
    )
    passages: int = option(64, "passages of the corpus, evenly spread")
    shape: str = option("small", "shape of the T5", choices=tuple(_SHAPES))
    samples: int = option(5, "texts per passage")
    max_tokens: int = option(64, "length of each text in tokens")
    max_input: int = option(256, "maximum input length in tokens")
    top_k: int = option(25, "sample from the top k tokens (0: all)")
    top_p: float = option(0.95, "sample from the top p of the probability mass (1: all)")
    precision: str = option("auto", "our precision", choices=PRECISIONS)
    batch_texts: int = option(0, "passages per batch, on both sides (0: as `qac generate`)")
    repetitions: int = option(3, "repetitions of each side")
    threads: int = option(0, "threads of PyTorch (0: one per core)")
    peer: str = option("transformers", "peer to compare with", choices=PEERS)
    generator: str = option("", "a trained generator instead of random weights ('': random)")
    profile: str = option("", "folder to record one of our repetitions in (extra [profile]: xprof)")

    def run(self) -> dict[str, Any]:
        if self.generator and self.peer == "transformers":
            raise UserError(
                "transformers has no generator of every kind that ends its texts alike; compare "
                "--generator with --peer batches, or with none"
            )
        if self.peer == "transformers":
            peer.torch(self.threads)
        generator, params = self._trained() if self.generator else self._generator()
        requests = self._requests()
        rows = generator.read(requests)
        batches = list(generator.batches([len(row) for row in rows]))

        def ours(generator: Generator) -> int:
            generated = [0]

            def report(_: int, tokens: int) -> None:
                generated[0] += tokens

            generator.generate(requests, report=report)
            return generated[0]

        sides: dict[str, Callable[[], int]] = {"qac_jax": functools.partial(ours, generator)}
        if self.peer == "transformers":
            sides[self.peer] = self._theirs(generator, params, rows, batches)
        elif self.peer == "batches":
            whole = dataclasses.replace(generator, refill=False)
            sides[self.peer] = functools.partial(ours, whole)
        wanted = 0 if self.generator else len(requests) * self.samples * self.max_tokens
        for name, run in sides.items():  # the first call compiles and is not measured
            tokens = run()
            wanted = wanted or tokens
            if abs(tokens - wanted) > _ROUNDED * wanted * bool(self.generator):
                raise UserError(
                    f"{name} generated {tokens} tokens instead of {wanted}, so the work is not the "
                    "same; report this"
                )
        seconds = peer.alternated(sides, self.repetitions, self.profile)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        figures: dict[str, Any] = {f"{n}_tokens_per_second": wanted / medians[n] for n in sides}
        if self.peer != "none":
            figures |= peer.ratio(seconds["qac_jax"], seconds[self.peer])
        figures["mean_tokens_written"] = wanted / len(requests) / self.samples
        return figures | self._more(generator, rows, batches, wanted / medians["qac_jax"])

    def _trained(self) -> tuple[Generator, None]:
        from qac_jax.inference.generator import Generator
        from qac_jax.inference.settings import Inference
        from qac_jax.models.decoding.settings import Decoding

        decoding = Decoding(
            max_tokens=self.max_tokens, samples=self.samples, top_k=self.top_k, top_p=self.top_p
        )
        inference = Inference(self.precision, batch_texts=self.batch_texts)
        return Generator.load(self.generator, decoding, inference, max_input=self.max_input), None

    def _generator(self) -> tuple[Generator, Any]:
        """A T5 with random weights whose texts always have the maximum length."""
        import jax

        from qac_jax.hub import backbones
        from qac_jax.inference.generator import Generator
        from qac_jax.inference.runner import dtype_of
        from qac_jax.inference.settings import Inference
        from qac_jax.models.decoding.settings import Decoding
        from qac_jax.models.layers import Runtime
        from qac_jax.models.t5 import T5, T5Config
        from qac_jax.text import tokenizers

        tokenizer = tokenizers.load()
        width, inner, layers, heads = _SHAPES[self.shape]
        config = T5Config(
            vocab_size=_ROWS,
            d_model=width,
            d_ff=inner,
            num_layers=layers,
            num_decoder_layers=layers,
            num_heads=heads,
            start_id=tokenizer.cls_id,
            eos_id=tokenizer.sep_id,
        )
        module = T5(config, Runtime(dtype=dtype_of(self.precision)))
        params = jax.tree.map(np.asarray, backbones.new_parameters(module))
        decoding = Decoding(
            max_tokens=self.max_tokens,
            min_tokens=self.max_tokens,
            samples=self.samples,
            top_k=self.top_k,
            top_p=self.top_p,
        )
        made = Generator.of(
            module,
            params,
            tokenizer,
            decoding,
            Inference(batch_texts=self.batch_texts),
            max_input=self.max_input,
        )
        # All rows of the table may be drawn, as on the other side.
        return dataclasses.replace(made, pieces=0), params

    def _requests(self) -> list[Request]:
        from qac_jax.inference.generator import Request

        texts = peer.passages(self.corpus, self.format, self.passages)
        return [Request(str(i), text, "text2query: ") for i, text in enumerate(texts)]

    def _theirs(
        self,
        generator: Generator,
        params: Any,
        rows: Sequence[Sequence[int]],
        batches: Sequence[Batch],
    ) -> Callable[[], int]:
        """The same batches through transformers, each padded to its longest text."""
        from qac_jax.hub import huggingface

        torch, transformers = peer.torch(self.threads), peer.package("transformers")
        on = peer.device()
        kind = torch.float32 if generator.module.runtime.dtype == "float32" else torch.bfloat16
        with tempfile.TemporaryDirectory() as folder:
            huggingface.save(folder, generator.module, {"params": params}, overwrite=True)
            model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
        model = model.eval().to(on, kind)

        def inputs(batch: Batch) -> dict[str, Any]:
            longest = max(len(rows[row]) for row in batch.rows)
            ids = torch.full((len(batch.rows), longest), generator.tokenizer.pad_id)
            for place, row in enumerate(batch.rows):
                ids[place, : len(rows[row])] = torch.tensor(rows[row])
            mask = torch.arange(longest) < torch.tensor([[len(rows[r])] for r in batch.rows])
            return {"input_ids": ids.to(on), "attention_mask": mask.long().to(on)}

        self._check(generator, rows, batches[-1], model, inputs(batches[-1]))

        def run() -> int:
            tokens = 0
            for batch in batches:
                generated = model.generate(
                    **inputs(batch),
                    do_sample=True,
                    top_k=self.top_k,
                    top_p=self.top_p,
                    num_return_sequences=self.samples,
                    max_new_tokens=self.max_tokens,
                    min_new_tokens=self.max_tokens,
                )
                texts = [generator.tokenizer.decode(ids) for ids in generated[:, 1:].tolist()]
                tokens += len(texts) * (generated.shape[1] - 1)
            return tokens

        return run

    def _check(
        self, generator: Generator, rows: Any, batch: Batch, model: Any, inputs: dict[str, Any]
    ) -> None:
        """Raises if the greedy texts of both sides differ."""
        from qac_jax.inference.generator import Request
        from qac_jax.models.decoding.settings import Decoding

        few = Decoding(method="greedy", samples=1, max_tokens=_CHECKED, min_tokens=_CHECKED)
        names = [Request("", "")] * len(rows)
        ours = dataclasses.replace(generator, decoding=few).start(names, rows, batch)
        theirs = model.generate(
            **inputs, do_sample=False, max_new_tokens=_CHECKED, min_new_tokens=_CHECKED
        )
        same = np.asarray(ours.tokens)[: len(batch.rows), 0] == theirs[:, 1:].cpu().numpy()
        if same[:, 0].mean() < 0.9:
            raise UserError(
                f"{same[:, 0].mean():.0%} of the first tokens agree; the two sides do not compute "
                "the same model, so their speeds cannot be compared"
            )

    def _more(
        self, generator: Generator, rows: Sequence[Sequence[int]], batches: Any, rate: float
    ) -> dict[str, Any]:
        import jax

        lengths = [len(row) for row in rows]
        tokens = _CORPUS * _QUERIES * self.max_tokens
        return {
            "mean_tokens_read": float(np.mean(lengths)),
            "rows_a_batch": batches[0].size * self.samples,
            "shapes": len({(b.size, b.length) for b in batches}),
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(generator.runner.params)),
            "precision": generator.module.runtime.dtype,
            "device": jax.devices()[0].device_kind,
            "cores": os.cpu_count(),
            f"hours_for_{_CORPUS}_passages_x_{_QUERIES}_x_{self.max_tokens}_tokens": tokens
            / rate
            / 3600,
        }
