"""`qac bench train` and `qac bench pretrain`: training steps beside the same steps in PyTorch."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError
from qac_jax.fields import option, part
from qac_jax.hardware import PRECISIONS_MEAN
from qac_jax.training.options import PRECISIONS


Batch = dict[str, np.ndarray]

_FIRST_WORD = 5  # after [PAD] [UNK] [CLS] [SEP] [MASK]
# Tokens of texts: of passages as shares of the longest (long ones, and about those of MS MARCO,
# whose mean is 0.52), and of queries as numbers.
_PASSAGES, _QUERIES = {"long": (0.65, 1.0), "msmarco": (0.2, 0.84)}, (6, 16)
_OBJECTIVES = ("cotmae", "cocondenser")
_ATTENTION = ("auto", "xla")
# The inputs of one side of the benchmark: (does the context hold a query, is it padded to 144).
_CONTEXTS = {
    "passage_query": (True, False),
    "passage_passage": (False, True),
    "passage_query_padded": (True, True),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """The BERT that both sides train."""

    layers: int = option(6, "layers of the BERT")
    hidden: int = option(384, "width of the BERT")
    head_size: int = option(0, "size of attention heads (0: 64, or 32 below a width of 768)")
    vocabulary: int = option(30522, "size of the vocabulary")
    dropout: float = option(0.1, "dropout, on both sides")
    precision: str = option(
        "auto", f"ours, and PyTorch's by autocast ({PRECISIONS_MEAN})", choices=PRECISIONS
    )

    def heads(self) -> int:
        size = self.head_size or (64 if self.hidden >= 768 else 32)
        if self.hidden % size:
            raise UserError(f"hidden={self.hidden} is not a multiple of head_size={size}")
        return self.hidden // size

    def ours(self, length: int, **runtime: Any) -> Any:
        """The network here."""
        from qac_jax.models.bert import BertConfig
        from qac_jax.models.layers import Runtime
        from qac_jax.training import train

        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_layers=self.layers,
            num_heads=self.heads(),
            intermediate_size=4 * self.hidden,
            max_positions=length,
            hidden_dropout=self.dropout,
            attention_dropout=self.dropout,
        )
        precision = train.precision_here(self.precision)
        return config.build(Runtime(dtype=precision, **runtime))

    def theirs(self, length: int) -> Any:
        """transformers' BertForMaskedLM."""
        transformers = peer.package("transformers")
        config = transformers.BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads(),
            intermediate_size=4 * self.hidden,
            max_position_embeddings=length,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )
        return transformers.BertForMaskedLM(config).train().to(peer.device())


class Compiled(NamedTuple):
    """A compiled step of ours, called with a batch and a number of steps."""

    run: Callable[[Batch, int], None]
    flops: float  # of one step over padded texts
    seconds: float  # that compiling took
    memory: dict[str, int]


def compiled_step(
    objective: Any, batch: Batch, microbatch: int = 0, pack: bool = False
) -> Compiled:
    """What `qac train` does at each step, batches handed over from the host included."""
    import jax

    from qac_jax.training import mesh as meshes
    from qac_jax.training import step, train
    from qac_jax.training.optimizers import Optimizer

    if not objective.splittable:
        objective = dataclasses.replace(objective, chunk=microbatch)
    mesh = meshes.make_mesh(devices=jax.devices()[:1])
    tx = Optimizer().build(1000, train.abstract_params(objective))
    rules = meshes.rules_named("default")
    engine = step.Engine(objective, tx, mesh, rules, microbatch=microbatch)
    room = step.room_of(engine, batch) if pack else ()
    spec = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in batch.items()}
    began = time.perf_counter()
    program = step.compiled(engine, spec, room)
    seconds = time.perf_counter() - began
    state: Any = None

    def steps(batch: Batch, count: int) -> None:
        nonlocal state
        state = engine.create() if state is None else state
        for _ in range(count):
            state, metrics = program(state, meshes.place(batch, mesh))
        jax.block_until_ready(metrics)

    flops = step.model_flops(engine.objective, spec)
    return Compiled(steps, flops, seconds, step.memory_of(program))


def torch_steps(
    model: Any, more: Any, losses: list[Callable[[], Any]], precision: str
) -> Callable[[int], None]:
    """Runs N steps of PyTorch: forward and backward of the losses, clipping, its fastest AdamW."""
    import torch

    parameters = [*model.parameters(), *more]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            for loss in losses:
                with peer.halved(precision):
                    found = loss() / len(losses)
                found.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        peer.wait()

    return steps


@dataclasses.dataclass(frozen=True)
class Train:
    """Examples/s of an MLM step (forward, backward, clipping, AdamW), and over PyTorch's.

    Both predict the masked tokens only. Repetitions alternate, figures are medians.
    """

    EXAMPLE = "qac bench train --steps 5 --repetitions 7"

    batch: int = option(32, "examples per step")
    length: int = option(128, "tokens per example, without padding")
    steps: int = option(3, "steps per repetition")
    repetitions: int = option(7, "repetitions of each side")
    threads: int = option(0, "threads of PyTorch (0: one per core)")
    profile: str = option("", "folder to record our steps in; look at it with XProf")
    shape: Shape = part(Shape)

    def run(self) -> dict[str, Any]:
        from qac_jax.objectives.masking import Vocabulary
        from qac_jax.objectives.mlm import Mlm

        peer.torch(self.threads)
        words = np.random.default_rng(0).integers(
            _FIRST_WORD, self.shape.vocabulary, (self.batch, self.length)
        )
        words[:, 0], words[:, -1] = 2, 3
        lengths = np.full(self.batch, self.length, np.int32)
        batch = {"tokens": words.astype(np.int32), "tokens_length": lengths}
        continuation = Vocabulary(np.zeros(self.shape.vocabulary, bool))
        ours = compiled_step(Mlm(self.shape.ours(self.length), vocabulary=continuation), batch)
        theirs = self._theirs(batch["tokens"])
        sides: dict[str, Callable[[], None]] = {
            "qac_jax": lambda: ours.run(batch, self.steps),
            "pytorch": lambda: theirs(self.steps),
        }
        seconds = peer.alternated(sides, self.repetitions, self.profile)
        medians = {n: statistics.median(times) / self.steps for n, times in seconds.items()}
        return {
            **{f"{name}_examples_per_second": self.batch / t for name, t in medians.items()},
            **{f"{n}_fastest_ms": 1e3 * min(t) / self.steps for n, t in seconds.items()},
            **peer.ratio(*seconds.values()),
            "gflops_per_second": 1e-9 * ours.flops / medians["qac_jax"],
            "shape": f"{self.shape.layers} x {self.shape.hidden}, {self.batch} x {self.length}",
            "dropout": self.shape.dropout,
            "precision": self.shape.precision,
            "cores": os.cpu_count(),
        }

    def _theirs(self, words: np.ndarray) -> Callable[[int], None]:
        """transformers' layers, logits at masked places only; masks come for free."""
        torch = peer.torch(self.threads)
        model, on = self.shape.theirs(self.length), peer.device()
        peer.compiled(model.bert.encoder.layer)
        ids = torch.tensor(words, dtype=torch.long, device=on)
        count = round(0.15 * (self.length - 2))
        places = torch.rand(self.batch, self.length - 2, device=on).argsort(1)[:, :count] + 1
        masked, wanted = ids.scatter(1, places, 4), ids.gather(1, places).flatten()

        def loss() -> Any:
            hidden = model.bert(input_ids=masked).last_hidden_state
            index = places[..., None].expand(-1, -1, hidden.shape[-1])
            logits = model.cls(hidden.gather(1, index)).flatten(0, 1)
            return torch.nn.functional.cross_entropy(logits, wanted)

        return torch_steps(model, (), [loss], self.shape.precision)


@dataclasses.dataclass(frozen=True)
class Ours:
    """How our side computes its steps."""

    remat: str = option("none", "rematerialisation", choices=("none", "attention", "dots", "layer"))
    scan: bool = option(False, "scan over layers, which compiles faster")
    pack: bool = option(False, "compute texts without their padding")
    attention: str = option("auto", "implementation of attention", choices=_ATTENTION)


@dataclasses.dataclass(frozen=True)
class Pretrain:
    """Examples/s, FLOPs, tokens/s, memory and MFU of pre-training steps, and over PyTorch's.

    An example is a pair. Passage–query pairs stand against passage–passage pairs (the paper's
    claim of efficiency) and against queries padded to the passages' length. The peer, where it is
    installed, is the same step written plainly in PyTorch with transformers' layers, which also
    computes logits at masked places only and gets its masks for free. It adds up gradients over the
    same microbatches; its coCondenser then contrasts the texts of a microbatch only, and encodes
    nothing twice. Repetitions alternate, figures are medians.

    On a GPU, where the peer's layers go through torch.compile:
    --layers 12 --hidden 768 --pairs 2048 --microbatch 256 --dropout 0 --pack --lengths msmarco.
    """

    EXAMPLE = "qac bench pretrain --objective cotmae --repetitions 5"

    objective: str = option("both", "objective", choices=("both", *_OBJECTIVES))
    decoder: str = option("mlm", "decoder of CoT-MAE", choices=("mlm", "causal", "both"))
    pairs: int = option(16, "pairs per step")
    microbatch: int = option(0, "pairs at a time: accumulated (CoT-MAE), in chunks (coCondenser)")
    passage: int = option(144, "maximum passage length")
    context: int = option(32, "maximum query length")
    lengths: str = option(
        "long",
        "passages that nearly fill the maximum, or MS MARCO's lengths",
        choices=(*_PASSAGES,),
    )
    contexts: str = option(
        "all",
        "kinds of context: queries alone, or passages and padded queries too",
        choices=("all", "query"),
    )
    peer: bool = option(True, "measure PyTorch too")
    steps: int = option(1, "steps per repetition")
    repetitions: int = option(5, "repetitions of each side")
    threads: int = option(0, "threads of PyTorch (0: one per core)")
    profile: str = option("", "folder to record our steps in; look at it with XProf")
    shape: Shape = part(Shape)
    ours: Ours = part(Ours)

    def run(self) -> dict[str, Any]:
        import jax

        names = _OBJECTIVES if self.objective == "both" else (self.objective,)
        figures: dict[str, Any] = {}
        for name in names:
            figures[name] = self._measured(name)
        of = self.shape
        figures |= {
            "shape": f"{of.layers} x {of.hidden}, {self.pairs} x {self.passage}/{self.context}",
            "device": jax.devices()[0].device_kind,
            "dropout": of.dropout,
            "cores": os.cpu_count(),
        }
        if why := self._without_peer():
            figures["pytorch"] = why
        return figures

    def _measured(self, name: str) -> dict[str, Any]:
        import jax

        from qac_jax.training import metrics

        without = self._without_peer()
        if not without:
            peer.torch(self.threads)
        sorts = _CONTEXTS if self.contexts == "all" else ("passage_query",)
        batches = {sort: self._batch(*_CONTEXTS[sort]) for sort in sorts}
        programs = {
            sort: compiled_step(self._objective(name), batch, self.microbatch, self.ours.pack)
            for sort, batch in batches.items()
        }
        sides: dict[str, Callable[[], None]] = {
            sort: functools.partial(programs[sort].run, batch, self.steps)
            for sort, batch in batches.items()
        }
        if not without:
            theirs = self._theirs(name, batches["passage_query"])
            sides["pytorch"] = lambda: theirs(self.steps)
        profile = os.path.join(self.profile, name) if self.profile else ""
        seconds = peer.alternated(sides, self.repetitions, profile)
        medians = {side: statistics.median(t) / self.steps for side, t in seconds.items()}
        figures: dict[str, Any] = {}
        for sort, batch in batches.items():
            program, median = programs[sort], medians[sort]
            tokens = sum(int(x.sum()) for n, x in batch.items() if n.endswith("_length"))
            figures[sort] = {
                "examples_per_second": self.pairs / median,
                "tokens_per_second": tokens / median,
                "flops_per_example": program.flops / self.pairs,
                "tflops": program.flops / median / 1e12,
                "fastest_ms": 1e3 * min(seconds[sort]) / self.steps,
                "compile_seconds": program.seconds,
            }
            if peak := program.memory.get("peak"):
                figures[sort]["memory_bytes"] = peak
            if (used := metrics.mfu(program.flops, median, jax.devices())) is not None:
                figures[sort]["mfu"] = used
        query = medians["passage_query"]
        if self.contexts == "all":
            figures["over_passage_passage"] = medians["passage_passage"] / query
            figures["over_padded"] = medians["passage_query_padded"] / query
        if "pytorch" in medians:
            figures["pytorch_examples_per_second"] = self.pairs / medians["pytorch"]
            figures |= peer.ratio(seconds["passage_query"], seconds["pytorch"])
        return figures

    def _batch(self, queries: bool, padded: bool) -> Batch:
        """Random words in texts of these lengths."""
        rng = np.random.default_rng(0)
        low, high = (round(share * self.passage) for share in _PASSAGES[self.lengths])
        of_passages = rng.integers(low, high + 1, self.pairs)
        of_contexts = (
            np.minimum(rng.integers(*_QUERIES, self.pairs), self.context)
            if queries
            else rng.integers(low, high + 1, self.pairs)
        )
        batch: Batch = {}
        for name, width, lengths in (
            ("passage", self.passage, of_passages),
            ("context", self.passage if padded else self.context, of_contexts),
        ):
            ids = rng.integers(_FIRST_WORD, self.shape.vocabulary, (self.pairs, width))
            ids[:, 0] = 2
            ids[np.arange(self.pairs), lengths - 1] = 3
            batch[name] = np.where(np.arange(width) < lengths[:, None], ids, 0).astype(np.int32)
            batch[f"{name}_length"] = lengths.astype(np.int32)
        return batch

    def _objective(self, name: str) -> Any:
        from qac_jax.objectives.cocondenser import CoCondenser
        from qac_jax.objectives.cotmae import CotMae
        from qac_jax.objectives.masking import Vocabulary

        how = self.ours
        model = self.shape.ours(
            self.passage, remat=how.remat, scan=how.scan, attention=how.attention
        )
        vocabulary = Vocabulary(np.zeros(self.shape.vocabulary, bool))
        if name == "cotmae":
            return CotMae(model, vocabulary=vocabulary, decoder=self.decoder)
        return CoCondenser(model, vocabulary=vocabulary)

    def _without_peer(self) -> str:
        """Why PyTorch is not measured; "" where it is."""
        if not self.peer:
            return "not asked for"
        for package in ("torch", "transformers"):
            if importlib.util.find_spec(package) is None:
                return f"not measured: {package} is not installed (pip install 'qac_jax[bench]')"
        if self.objective != "cocondenser" and self.decoder != "mlm":
            return "not measured: transformers has no layer like the causal decoder's"
        return ""

    def _theirs(self, name: str, batch: Mapping[str, np.ndarray]) -> Callable[[int], None]:
        """CoT-MAE (MLM decoder) or coCondenser on one batch, plainly.

        Words are masked once, beforehand, at no cost for the peer.
        """
        import torch
        from transformers.models.bert.modeling_bert import BertLayer

        on, model = peer.device(), self.shape.theirs(self.passage)
        head = torch.nn.ModuleList(BertLayer(model.config) for _ in range(2)).train().to(on)
        peer.compiled([*model.bert.encoder.layer, *head])

        def text(feature: str, rate: float, rows: slice) -> dict[str, Any]:
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
            masked = ids.scatter(1, places, torch.where(real > 0, 4, wanted))
            seen = (torch.arange(width) < lengths[:, None])[:, None, None, :]
            far = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
            mask = seen[:, 0, 0].long()
            made = {"ids": masked, "mask": mask, "far": far, "places": places, "wanted": wanted,
                    "real": real}  # fmt: skip
            return {key: value.to(on) for key, value in made.items()}

        def nll(hidden: Any, of: Mapping[str, Any]) -> Any:
            index = of["places"][..., None].expand(-1, -1, hidden.shape[-1])
            logits = model.cls(hidden.gather(1, index)).flatten(0, 1)
            entropy = torch.nn.functional.cross_entropy
            each = entropy(logits, of["wanted"].flatten(), reduction="none")
            return (each * of["real"].flatten()).sum()

        def through_head(cls: Any, rest: Any, far: Any) -> Any:
            x = torch.cat([cls[:, None], rest[:, 1:]], 1)
            for layer in head:
                x = layer(x, far)
            return x

        def cotmae(rows: slice) -> Callable[[], Any]:
            passage, context = text("passage", 0.30, rows), text("context", 0.45, rows)

            def loss() -> Any:
                out = model.bert(passage["ids"], attention_mask=passage["mask"])
                hidden = out.last_hidden_state
                embedded = model.bert.embeddings(input_ids=context["ids"])
                decoded = through_head(hidden[:, 0], embedded, context["far"])
                own, other = nll(hidden, passage), nll(decoded, context)
                return own / passage["real"].sum() + other / context["real"].sum()

            return loss

        def cocondenser(rows: slice) -> Callable[[], Any]:
            texts = [text("passage", 0.15, rows), text("context", 0.15, rows)]
            total = sum(of["real"].sum() for of in texts)

            def loss() -> Any:
                vectors, mlm = [], 0.0
                for of in texts:
                    out = model.bert(
                        of["ids"], attention_mask=of["mask"], output_hidden_states=True
                    )
                    hidden = out.last_hidden_state
                    early = out.hidden_states[self.shape.layers // 2]
                    mlm = mlm + nll(hidden, of)
                    mlm = mlm + nll(through_head(hidden[:, 0], early, of["far"]), of)
                    vectors.append(hidden[:, 0])
                every = torch.stack(vectors, 1).flatten(0, 1)
                scores = (every @ every.T).fill_diagonal_(float("-inf"))
                partner = torch.arange(len(every), device=on) ^ 1
                return mlm / total + torch.nn.functional.cross_entropy(scores, partner)

            return loss

        some = self.microbatch or self.pairs
        chunks = [slice(start, start + some) for start in range(0, self.pairs, some)]
        losses = [cotmae(rows) if name == "cotmae" else cocondenser(rows) for rows in chunks]
        return torch_steps(model, head.parameters(), losses, self.shape.precision)
