"""`qac bench train`: training steps, beside the same steps in PyTorch."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qac_jax import hardware
from qac_jax.bench import peer
from qac_jax.fields import option
from qac_jax.hardware import PRECISIONS_MEAN
from qac_jax.training.options import PRECISIONS


Batch = dict[str, np.ndarray]

_FIRST_WORD = 5  # after [PAD] [UNK] [CLS] [SEP] [MASK]
# Tokens of texts: of passages as shares of the longest (MS MARCO's mean is 0.52), and of queries.
_PASSAGES = {"full": (1.0, 1.0), "long": (0.65, 1.0), "msmarco": (0.2, 0.84)}
_QUERY, _QUERIES = 32, (6, 16)


@dataclasses.dataclass(frozen=True)
class Train:
    """Examples/s of a training step (forward, backward, clipping, AdamW), and over PyTorch's.

    An example of CoT-MAE and coCondenser is a pair of a passage and a query. The peer is the same
    step written plainly in PyTorch with transformers' layers, which also computes logits at masked
    places only and gets its masks for free. It adds up gradients over the same microbatches; its
    coCondenser then contrasts the texts of a microbatch only, and encodes nothing twice.

    On a GPU, where the peer's layers go through torch.compile: --objective cotmae
    --layers 12 --hidden 768 --batch 2048 --microbatch 256 --pack --lengths msmarco.
    """

    EXAMPLE = "qac bench train --objective cotmae --repetitions 5"

    objective: str = option("mlm", "objective", choices=("mlm", "cotmae", "cocondenser"))
    batch: int = option(32, "examples per step", at_least=1)
    microbatch: int = option(
        0, "examples at a time: accumulated, in chunks (coCondenser)", at_least=0
    )
    passage: int = option(144, "maximum passage length")
    lengths: str = option(
        "long", "passages of the maximum, near it, or of MS MARCO's lengths", choices=(*_PASSAGES,)
    )
    layers: int = option(6, "layers of the BERT")
    hidden: int = option(384, "width of the BERT")
    vocabulary: int = option(30522, "size of the vocabulary", above=_FIRST_WORD)
    dropout: float = option(0.1, "dropout, on both sides")
    precision: str = option(
        "auto", f"ours, and PyTorch's by autocast ({PRECISIONS_MEAN})", choices=PRECISIONS
    )
    pack: bool = option(False, "ours: compute texts without their padding")
    peer: bool = option(True, "measure PyTorch too")
    repetitions: int = option(5, "repetitions of each side", at_least=1)

    def run(self) -> dict[str, Any]:
        if self.peer:
            peer.torch()
        import jax

        from qac_jax.training import metrics

        batch = self._batch()
        ours, more = self._ours(batch)
        sides = {"qac_jax": ours}
        if self.peer:
            sides["pytorch"] = self._theirs(batch)
        # In training a step follows a step, and finds the memory that the one before it has freed;
        # after a turn of the peer a virtual machine may have taken it back.
        figures = peer.compared(sides, self.batch, "examples", self.repetitions, before=1)
        flops = more["flops_per_example"] * self.batch
        seconds = self.batch / figures["qac_jax_examples_per_second"]
        rates = {"step_ms": 1e3 * seconds, "tflops": flops / seconds / 1e12}
        return figures | more | rates | {"mfu": metrics.mfu(flops, seconds, jax.devices())}

    def _batch(self) -> Batch:
        """Random words in texts of these lengths."""
        rng = np.random.default_rng(0)
        low, high = (round(share * self.passage) for share in _PASSAGES[self.lengths])
        texts = {"passage": (self.passage, rng.integers(low, high + 1, self.batch))}
        if self.objective == "mlm":
            texts = {"tokens": texts["passage"]}
        else:
            texts["context"] = _QUERY, rng.integers(*_QUERIES, self.batch)
        batch: Batch = {}
        for name, (width, lengths) in texts.items():
            ids = rng.integers(_FIRST_WORD, self.vocabulary, (self.batch, width))
            ids[:, 0] = 2
            ids[np.arange(self.batch), lengths - 1] = 3
            batch[name] = np.where(np.arange(width) < lengths[:, None], ids, 0).astype(np.int32)
            batch[f"{name}_length"] = lengths.astype(np.int32)
        return batch

    def _heads(self) -> int:
        return self.hidden // (64 if self.hidden >= 768 else 32)

    def _objective(self) -> Any:
        import jax

        from qac_jax.models.bert import BertConfig
        from qac_jax.models.layers import Runtime
        from qac_jax.objectives.cocondenser import CoCondenser
        from qac_jax.objectives.cotmae import CotMae
        from qac_jax.objectives.masking import Vocabulary
        from qac_jax.objectives.mlm import Mlm

        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_layers=self.layers,
            num_heads=self._heads(),
            intermediate_size=4 * self.hidden,
            max_positions=max(self.passage, _QUERY),
            hidden_dropout=self.dropout,
            attention_dropout=self.dropout,
        )
        precision = hardware.precision_on(jax.default_backend(), self.precision)
        model = config.build(Runtime(dtype=precision))
        words = Vocabulary(np.zeros(self.vocabulary, bool))
        if self.objective == "cotmae":
            return CotMae(model, vocabulary=words, decoder="mlm")
        return (Mlm if self.objective == "mlm" else CoCondenser)(model, vocabulary=words)

    def _ours(self, batch: Batch) -> tuple[Callable[[], None], dict[str, Any]]:
        """The work of `qac train` at each step, batches handed over from the host included."""
        import jax

        from qac_jax.training import mesh as meshes
        from qac_jax.training import metrics, step, train
        from qac_jax.training.optimizers import Optimizer

        objective = self._objective()
        if not objective.splittable:
            objective = dataclasses.replace(objective, chunk=self.microbatch)
        mesh = meshes.make_mesh(devices=jax.devices()[:1])
        tx = Optimizer().build(1000, train.abstract_params(objective))
        engine = step.Engine(objective, tx, mesh, microbatch=self.microbatch)
        room = step.room_of(engine, batch) if self.pack else ()
        spec = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in batch.items()}
        began = time.perf_counter()
        program = step.compiled(engine, spec, room)
        # As in training: padding is not counted, whether it is computed or not.
        real = metrics.tokens_of(batch) / metrics.padded_tokens(spec)
        figures = {
            "flops_per_example": step.model_flops(engine.objective, spec) * real / self.batch,
            "compile_seconds": time.perf_counter() - began,
            "memory_bytes": step.memory_of(program).get("peak", 0),
        }
        state: Any = engine.create()

        def one_step() -> None:
            nonlocal state
            state, last = program(state, meshes.place(batch, mesh))
            jax.block_until_ready(last)

        return one_step, figures

    def _theirs(self, batch: Batch) -> Callable[[], None]:
        """Forward and backward of the losses, clipping, PyTorch's fastest AdamW."""
        from transformers.models.bert.modeling_bert import BertLayer

        torch, transformers = peer.torch(), peer.package("transformers")
        config = transformers.BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self._heads(),
            intermediate_size=4 * self.hidden,
            max_position_embeddings=max(self.passage, _QUERY),
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )
        model = transformers.BertForMaskedLM(config).train().to(peer.device())
        layers = 0 if self.objective == "mlm" else 2
        head = torch.nn.ModuleList(BertLayer(model.config) for _ in range(layers))
        head = head.train().to(peer.device())
        if peer.device() == "cuda":
            for layer in (*model.bert.encoder.layer, *head):
                layer.compile(dynamic=False)
        some = self.microbatch or self.batch
        chunks = [slice(start, start + some) for start in range(0, self.batch, some)]
        losses = [self._loss(model, head, batch, rows) for rows in chunks]
        parameters = [*model.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            for loss in losses:
                with peer.halved(self.precision):
                    found = loss() / len(losses)
                found.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if peer.device() == "cuda":
                torch.cuda.synchronize()

        return step

    def _loss(self, model: Any, head: Any, batch: Batch, rows: slice) -> Callable[[], Any]:
        """The objective's loss of some rows, whose words are masked beforehand."""
        torch = peer.package("torch")
        cross_entropy = torch.nn.functional.cross_entropy

        def text(feature: str, rate: float) -> dict[str, Any]:
            ids = torch.tensor(batch[feature][rows], dtype=torch.long)
            lengths = torch.tensor(batch[f"{feature}_length"][rows])
            width = ids.shape[1]
            count = max(1, round(rate * (width - 2)))  # computed; places beyond a text weigh 0
            budget = torch.clamp((rate * (lengths - 2)).round(), min=1)
            inner = torch.rand(ids.shape) + 2.0 * (torch.arange(width) >= lengths[:, None] - 1)
            inner[:, 0] = 3.0
            places = inner.argsort(1)[:, :count]
            real = (torch.arange(count) < budget[:, None]).float()
            wanted = ids.gather(1, places)
            seen = (torch.arange(width) < lengths[:, None])[:, None, None, :]
            made = {
                "ids": ids.scatter(1, places, torch.where(real > 0, 4, wanted)),
                "mask": seen[:, 0, 0].long(),
                "far": torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min),
                "places": places,
                "wanted": wanted,
                "real": real,
            }
            return {key: value.to(peer.device()) for key, value in made.items()}

        def encoded(of: Mapping[str, Any]) -> Any:
            return model.bert(of["ids"], attention_mask=of["mask"], output_hidden_states=True)

        def nll(hidden: Any, of: Mapping[str, Any]) -> Any:
            index = of["places"][..., None].expand(-1, -1, hidden.shape[-1])
            logits = model.cls(hidden.gather(1, index)).flatten(0, 1)
            each = cross_entropy(logits, of["wanted"].flatten(), reduction="none")
            return (each * of["real"].flatten()).sum()

        def through_head(cls: Any, rest: Any, far: Any) -> Any:
            x = torch.cat([cls[:, None], rest[:, 1:]], 1)
            for layer in head:
                x = layer(x, far)
            return x

        def mlm() -> Any:
            return nll(encoded(first).last_hidden_state, first) / first["real"].sum()

        def cotmae() -> Any:
            hidden = encoded(first).last_hidden_state
            embedded = model.bert.embeddings(input_ids=second["ids"])
            decoded = through_head(hidden[:, 0], embedded, second["far"])
            own, other = nll(hidden, first), nll(decoded, second)
            return own / first["real"].sum() + other / second["real"].sum()

        def cocondenser() -> Any:
            vectors, loss = [], 0.0
            for of in (first, second):
                out = encoded(of)
                hidden, early = out.last_hidden_state, out.hidden_states[self.layers // 2]
                loss = loss + nll(hidden, of)
                loss = loss + nll(through_head(hidden[:, 0], early, of["far"]), of)
                vectors.append(hidden[:, 0])
            every = torch.stack(vectors, 1).flatten(0, 1)
            scores = (every @ every.T).fill_diagonal_(float("-inf"))
            partner = torch.arange(len(every), device=every.device) ^ 1
            total = first["real"].sum() + second["real"].sum()
            return loss / total + cross_entropy(scores, partner)

        if self.objective == "mlm":
            first = text("tokens", 0.15)
            return mlm
        rates = {"cotmae": (0.30, 0.45), "cocondenser": (0.15, 0.15)}[self.objective]
        first, second = text("passage", rates[0]), text("context", rates[1])
        return cotmae if self.objective == "cotmae" else cocondenser
