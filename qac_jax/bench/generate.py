"""`qac bench generate`: new tokens/s of a T5, beside transformers' `generate`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.inference.settings import PRECISIONS


if TYPE_CHECKING:
    from qac_jax.inference.generator import Generator


# (width, inner width, layers of encoder and decoder each, heads); 64 numbers a head.
_SHAPES = {"small": (512, 2048, 6, 8), "base": (768, 3072, 12, 12)}
_TOP_K, _TOP_P = 25, 0.95
_ROWS = 32128


@dataclasses.dataclass(frozen=True)
class Generate:
    """New tokens/s of `qac generate` (from text to text), and over transformers' `generate`.

    Both have the same random weights and read the same real passages, sorted by length. As random
    weights hardly ever end a text, both are made to say all `max_tokens`: the work is the same.
    Repetitions alternate, figures are medians; it fails if the greedy first tokens differ.
    """

    EXAMPLE = "qac bench generate --passages 64 --repetitions 3"

    corpus: str = option("numpy,scipy", "Python packages whose documentation is read")
    passages: int = option(64, "passages of the corpus, evenly spread", at_least=1)
    shape: str = option("small", "shape of the T5", choices=tuple(_SHAPES))
    samples: int = option(5, "texts per passage", at_least=1)
    max_tokens: int = option(64, "length of each text in tokens", at_least=1)
    precision: str = option("auto", "our precision", choices=PRECISIONS)
    repetitions: int = option(3, "repetitions of each side", at_least=1)

    def run(self) -> dict[str, Any]:
        from qac_jax.inference.generator import Request

        peer.torch()
        generator, params = self._generator()
        texts = peer.passages(self.corpus, self.passages)
        requests = [Request(str(i), text, "text2query: ") for i, text in enumerate(texts)]
        theirs = self._theirs(generator, params, generator.read(requests))
        wanted = len(requests) * self.samples * self.max_tokens

        def ours() -> int:
            counts: list[int] = []
            generator.generate(requests, report=lambda _, tokens: counts.append(tokens))
            return sum(counts)

        sides = {"qac_jax": ours, "transformers": theirs}
        for name, generate in sides.items():
            if (tokens := generate()) != wanted:
                raise UserError(f"{name} generated {tokens} tokens instead of {wanted}")
        figures = peer.compared(sides, wanted, "tokens", self.repetitions)
        return figures | {"precision": generator.module.runtime.dtype}

    def _generator(self) -> tuple[Generator, Any]:
        """A T5 with random weights whose texts always have the maximum length."""
        import jax

        from qac_jax.hub import backbones
        from qac_jax.inference.generator import Generator
        from qac_jax.inference.runner import dtype_of
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
            top_k=_TOP_K,
            top_p=_TOP_P,
        )
        made = Generator.of(module, params, tokenizer, decoding, max_input=256)
        # All rows of the table may be drawn, as on the other side.
        return dataclasses.replace(made, pieces=0), params

    def _theirs(
        self, generator: Generator, params: Any, rows: Sequence[Sequence[int]]
    ) -> Callable[[], int]:
        """The same batches through transformers, each padded to its longest text."""
        from qac_jax.hub import huggingface
        from qac_jax.inference.generator import Request
        from qac_jax.models.decoding.settings import Decoding

        torch, transformers = peer.torch(), peer.package("transformers")
        kind = torch.float32 if generator.module.runtime.dtype == "float32" else torch.bfloat16
        with tempfile.TemporaryDirectory() as folder:
            huggingface.save(folder, generator.module, {"params": params})
            model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
        model = model.eval().to(peer.device(), kind)
        batches = list(generator.batches([len(row) for row in rows]))

        def generated(batch: Any, tokens: int, **options: Any) -> Any:
            texts = [torch.tensor(rows[row]) for row in batch.rows]
            joined = torch.nn.utils.rnn.pad_sequence
            ids = joined(texts, batch_first=True, padding_value=generator.tokenizer.pad_id)
            mask = joined([torch.ones_like(text) for text in texts], batch_first=True)
            return model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                **options,
            )[:, 1:]

        greedy = generated(batches[-1], 1, do_sample=False).cpu().numpy()
        few = Decoding(method="greedy", samples=1, max_tokens=1, min_tokens=1)
        named = [Request("", "")] * len(rows)
        own = dataclasses.replace(generator, decoding=few).start(named, rows, batches[-1])
        same = np.mean(np.asarray(own.tokens)[: len(greedy), 0] == greedy)
        if same < 0.9:
            raise UserError(f"{same:.0%} of the first tokens agree: not the same model")

        def run() -> int:
            tokens = 0
            sampled = {"do_sample": True, "top_k": _TOP_K, "top_p": _TOP_P}
            for batch in batches:
                found = generated(
                    batch, self.max_tokens, num_return_sequences=self.samples, **sampled
                )
                texts = [generator.tokenizer.decode(ids) for ids in found.tolist()]
                tokens += len(texts) * found.shape[1]
            return tokens

        return run
