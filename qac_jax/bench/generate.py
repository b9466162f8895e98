"""`qac bench generate`: new tokens/s of a T5, beside transformers or CTranslate2."""

from __future__ import annotations

import dataclasses
import importlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.inference.settings import PRECISIONS
from qac_jax.processes import cores


if TYPE_CHECKING:
    from qac_jax.inference.generator import Generator


# (width, inner width, layers of encoder and decoder each, heads); 64 numbers a head.
_SHAPES = {"small": (512, 2048, 6, 8), "base": (768, 3072, 12, 12)}
_TOP_K, _TOP_P = 25, 0.95
_ROWS = 32128
_SCORED = 6  # tokens of the check
# Peers, and how far their log-likelihoods of tokens may be from ours.
_PEERS = {"transformers": 0.01, "ctranslate2": 0.01, "ctranslate2_int8": 0.2}
_HALF = 0.2  # where products are of half precision

Rows = Sequence[Sequence[int]]
# A peer's texts of a batch; its log-likelihoods of the first tokens of targets, given texts.
Texts = Callable[[Any], list[list[int]]]
Scored = Callable[[list[list[int]], np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Generate:
    """New tokens/s of `qac generate` (from text to text), and over a peer's.

    Both have the same random weights and read the same real passages, sorted by length. As random
    weights hardly ever end a text, both are made to say all `max_tokens`: the work is the same.
    Repetitions alternate, figures are medians; it fails if the models are not the same.
    """

    EXAMPLE = "qac bench generate --passages 64 --repetitions 3"

    corpus: str = option("numpy,scipy", "Python packages whose documentation is read")
    passages: int = option(64, "passages of the corpus, evenly spread", at_least=1)
    shape: str = option("small", "shape of the T5", choices=tuple(_SHAPES))
    samples: int = option(5, "texts per passage", at_least=1)
    max_tokens: int = option(64, "length of each text in tokens", at_least=1)
    peer: str = option("transformers", "what is measured beside it", choices=tuple(_PEERS))
    precision: str = option("auto", "ours, and the peer's unless that is int8", choices=PRECISIONS)
    repetitions: int = option(3, "repetitions of each side", at_least=1)

    def run(self) -> dict[str, Any]:
        from qac_jax.inference.generator import Request

        peer.torch()
        generator, params = self._generator()
        texts = peer.passages(self.corpus, self.passages)
        requests = [Request(str(i), text, "text2query: ") for i, text in enumerate(texts)]
        rows = generator.read(requests)
        batches = list(generator.batches([len(row) for row in rows]))
        loaded = self._transformers if self.peer == "transformers" else self._ctranslate2
        generated, scored = loaded(generator, params, rows)
        self._check(generator, params, rows, batches[-1], scored)
        wanted = len(requests) * self.samples * self.max_tokens

        def ours() -> int:
            counts: list[int] = []
            generator.generate(requests, report=lambda _, tokens: counts.append(tokens))
            return sum(counts)

        def theirs() -> int:
            tokens = 0
            for batch in batches:
                for ids in generated(batch):
                    generator.tokenizer.decode(ids)
                    tokens += len(ids)
            return tokens

        sides = {"qac_jax": ours, self.peer: theirs}
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

    def _transformers(self, generator: Generator, params: Any, rows: Rows) -> tuple[Texts, Scored]:
        """The same batches through transformers, each padded to its longest text."""
        from qac_jax.hub import huggingface

        torch, transformers = peer.torch(), peer.package("transformers")
        kind = torch.float32 if generator.module.runtime.dtype == "float32" else torch.bfloat16
        with tempfile.TemporaryDirectory() as folder:
            huggingface.save(folder, generator.module, {"params": params})
            model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
        model = model.eval().to(peer.device(), kind)

        def generated(batch: Any) -> list[list[int]]:
            texts = [torch.tensor(rows[row]) for row in batch.rows]
            joined = torch.nn.utils.rnn.pad_sequence
            ids = joined(texts, batch_first=True, padding_value=generator.tokenizer.pad_id)
            mask = joined([torch.ones_like(text) for text in texts], batch_first=True)
            found = model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=self.max_tokens,
                min_new_tokens=self.max_tokens,
                num_return_sequences=self.samples,
                do_sample=True,
                top_k=_TOP_K,
                top_p=_TOP_P,
            )
            return found[:, 1:].tolist()

        def scored(texts: list[list[int]], targets: np.ndarray) -> np.ndarray:
            wanted = torch.tensor(targets)[..., None].to(model.device)
            before = model._shift_right(wanted[..., 0])
            found = [
                model(torch.tensor([text]).to(model.device), decoder_input_ids=start[None]).logits
                for text, start in zip(texts, before, strict=True)
            ]
            scores = torch.cat(found).float().log_softmax(-1)
            return scores.gather(-1, wanted)[..., 0].detach().cpu().numpy()

        return generated, scored

    def _ctranslate2(self, generator: Generator, params: Any, rows: Rows) -> tuple[Texts, Scored]:
        """The same batches through CTranslate2, as its converter makes the model."""
        from qac_jax.hub import huggingface
        from qac_jax.text import tokenizers

        library, transformers = peer.package("ctranslate2"), peer.package("transformers")
        converters = importlib.import_module("ctranslate2.converters")
        end = generator.tokenizer.token(generator.module.config.eos_id)
        own = tokenizers.ASSETS / tokenizers.SHIPPED
        int8 = self.peer.endswith("int8")
        with tempfile.TemporaryDirectory() as folder:
            huggingface.save(folder, generator.module, {"params": params}, tokenizer=own)
            # The converter asks the tokenizer which token ends a text.
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, eos_token=end)
            tokenizer.save_pretrained(folder)
            made = converters.TransformersConverter(folder).convert(f"{folder}/converted")
            names = json.loads(Path(made, "shared_vocabulary.json").read_text())
            model = library.Translator(
                made,
                device=peer.device(),
                compute_type="int8" if int8 else generator.module.runtime.compute_dtype.name,
                intra_threads=cores(),
            )
        ids = {name: number for number, name in enumerate(names)}

        def translated(batch: Any) -> list[list[int]]:
            found = model.translate_batch(
                [[names[i] for i in rows[row]] for row in batch.rows],
                beam_size=1,
                max_decoding_length=self.max_tokens,
                min_decoding_length=self.max_tokens,
                num_hypotheses=self.samples,
                sampling_topk=_TOP_K,
                sampling_topp=_TOP_P,
            )
            return [[ids[name] for name in one] for each in found for one in each.hypotheses]

        def scored(texts: list[list[int]], targets: np.ndarray) -> np.ndarray:
            sides = (
                [[names[i] for i in ids] for ids in side] for side in (texts, targets.tolist())
            )
            return np.array([found.log_probs[:_SCORED] for found in model.score_batch(*sides)])

        return translated, scored

    def _check(
        self, generator: Generator, params: Any, rows: Rows, batch: Any, scored: Scored
    ) -> None:
        """Refuses a peer whose log-likelihoods of each text's first tokens, given the text, are not
        ours. (What is likeliest says little: with random weights that is the last token again.)"""
        import jax

        from qac_jax.inference.runner import padded

        ids, lengths = padded(rows, batch, generator.tokenizer.pad_id)
        texts = [list(rows[row]) for row in batch.rows]
        targets = ids[: len(texts), :_SCORED]
        start = generator.module.config.start_id
        before = np.pad(ids[:, : _SCORED - 1], ((0, 0), (1, 0)), constant_values=start)
        logits = generator.module.apply({"params": params}, ids, lengths, before)
        every = np.asarray(jax.nn.log_softmax(np.asarray(logits, np.float32)[: len(texts)]))
        own = np.take_along_axis(every, targets[..., None], -1)[..., 0]
        apart = float(np.abs(own - scored(texts, targets)).mean())
        half = generator.module.runtime.dtype != "float32"
        if not apart <= (_HALF if half else _PEERS[self.peer]):
            raise UserError(f"log-likelihoods of tokens are {apart:.2g} apart: not the same model")
