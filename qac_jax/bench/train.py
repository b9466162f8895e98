"""`qac bench train`: steps of masked language modelling, against the same model in PyTorch."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.fields import option
from qac_jax.hardware import PRECISIONS_MEAN
from qac_jax.training.options import PRECISIONS


_FIRST_WORD = 5  # after [PAD] [UNK] [CLS] [SEP] [MASK]


@dataclasses.dataclass(frozen=True)
class Train:
    """Examples/s of an MLM step (forward, backward, clipping, AdamW), and over PyTorch's.

    Both predict the masked tokens only; `ratio_full_logits` is over transformers' BertForMaskedLM
    as it comes, which computes logits for all tokens. Repetitions alternate, figures are medians.
    """

    EXAMPLE = "qac bench train --steps 5 --repetitions 7"

    layers: int = option(6, "layers of the BERT")
    hidden: int = option(384, "width of the BERT")
    vocabulary: int = option(30522, "size of the vocabulary")
    batch: int = option(32, "examples per step")
    length: int = option(128, "tokens per example, without padding")
    dropout: float = option(0.1, "dropout, on both sides")
    generator: str = option("hash", "generator of our dropout masks", choices=("hash", "threefry"))
    steps: int = option(3, "steps per repetition")
    precision: str = option(
        "auto", f"ours, and PyTorch's by autocast ({PRECISIONS_MEAN})", choices=PRECISIONS
    )
    repetitions: int = option(7, "repetitions of each side")
    threads: int = option(0, "threads of PyTorch (0: one per core)")
    profile: str = option("", "folder to record our steps in; look at it with XProf")

    def run(self) -> dict[str, Any]:
        peer.torch(self.threads)
        ours, flops = self._ours()
        sides = {
            "qac_jax": ours,
            "pytorch": self._theirs(full_logits=False),
            "pytorch_full_logits": self._theirs(full_logits=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for step in sides.values():  # compilation and the first call are not measured
            step(2)
        for _ in range(self.repetitions):
            for name, step in sides.items():
                began = time.perf_counter()
                step(self.steps)
                seconds[name].append((time.perf_counter() - began) / self.steps)
        if self.profile:
            import jax

            from qac_jax.training import metrics

            with jax.profiler.trace(self.profile):
                ours(self.steps)
            print(metrics.how_to_open(self.profile))
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        figures: dict[str, Any] = {
            f"{name}_examples_per_second": self.batch / median for name, median in medians.items()
        }
        figures |= {f"{name}_fastest_ms": 1e3 * min(times) for name, times in seconds.items()}
        figures["gflops_per_second"] = 1e-9 * flops / medians["qac_jax"]
        figures["ratio"] = medians["pytorch"] / medians["qac_jax"]
        figures["ratio_full_logits"] = medians["pytorch_full_logits"] / medians["qac_jax"]
        figures["shape"] = f"{self.layers} x {self.hidden}, {self.batch} x {self.length}"
        figures["dropout"], figures["cores"] = self.dropout, os.cpu_count()
        figures["precision"] = self.precision
        return figures

    def _ids(self) -> np.ndarray:
        words = np.random.default_rng(0).integers(
            _FIRST_WORD, self.vocabulary, (self.batch, self.length)
        )
        words[:, 0], words[:, -1] = 2, 3
        return words.astype(np.int32)

    def _ours(self) -> tuple[Callable[[int], None], float]:
        """What `qac pretrain` does at each step, batches handed over from the host included,
        and its FLOPs."""
        import jax

        from qac_jax.models.bert import Bert, BertConfig
        from qac_jax.models.layers import Runtime
        from qac_jax.objectives.masking import Vocabulary
        from qac_jax.objectives.mlm import Mlm
        from qac_jax.training import mesh as meshes
        from qac_jax.training import train
        from qac_jax.training.optimizers import Optimizer
        from qac_jax.training.step import Engine, model_flops

        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_layers=self.layers,
            num_heads=self.hidden // 32,
            intermediate_size=4 * self.hidden,
            max_positions=self.length,
            hidden_dropout=self.dropout,
            attention_dropout=self.dropout,
        )
        runtime = Runtime(dtype=train.precision_here(self.precision), dropout=self.generator)
        continuation = np.zeros(self.vocabulary, bool)
        objective = Mlm(Bert(config, runtime), vocabulary=Vocabulary(continuation))
        mesh = meshes.make_mesh(devices=jax.devices()[:1])
        tx = Optimizer().build(1000, train.abstract_params(objective))
        engine = Engine(objective, tx, mesh, meshes.rules_named("default"))
        lengths = np.full(self.batch, self.length, np.int32)
        batch = {"tokens": self._ids(), "tokens_length": lengths}
        compiled = engine.compile_step(batch)
        state = engine.create()

        def steps(count: int) -> None:
            nonlocal state
            for _ in range(count):
                state, metrics = compiled(state, meshes.place(batch, mesh))
            jax.block_until_ready(metrics)

        spec = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
        return steps, model_flops(objective, spec)

    def _theirs(self, full_logits: bool) -> Callable[[int], None]:
        """transformers' BertForMaskedLM, with PyTorch's fastest optimiser; masks come for free."""
        torch = peer.torch(self.threads)
        transformers = peer.transformers()
        on = peer.device()
        config = transformers.BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 32,
            intermediate_size=4 * self.hidden,
            max_position_embeddings=self.length,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )
        model = transformers.BertForMaskedLM(config).train().to(on)
        peer.compiled(model.bert.encoder.layer)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        ids = torch.tensor(self._ids(), dtype=torch.long, device=on)
        count = round(0.15 * (self.length - 2))
        places = torch.rand(self.batch, self.length - 2, device=on).argsort(1)[:, :count] + 1
        masked = ids.scatter(1, places, 4)
        labels = torch.full_like(ids, -100).scatter(1, places, ids.gather(1, places))
        wanted = ids.gather(1, places).flatten()

        def loss() -> Any:
            if full_logits:
                return model(input_ids=masked, labels=labels).loss
            hidden = model.bert(input_ids=masked).last_hidden_state
            index = places[..., None].expand(-1, -1, hidden.shape[-1])
            logits = model.cls(hidden.gather(1, index)).flatten(0, 1)
            return torch.nn.functional.cross_entropy(logits, wanted)

        def steps(count: int) -> None:
            for _ in range(count):
                optimizer.zero_grad()
                with peer.halved(self.precision):
                    found = loss()
                found.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            peer.wait()

        return steps
