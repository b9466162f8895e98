"""`qac bench pretrain`: steps of CoT-MAE and coCondenser, by kind of context."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError
from qac_jax.fields import option, part
from qac_jax.training.options import PRECISIONS


Batch = dict[str, np.ndarray]

_FIRST_WORD = 5  # after [PAD] [UNK] [CLS] [SEP] [MASK]
# Tokens of texts: of passages as shares of the longest (long ones, and about those of MS MARCO,
# whose mean is 0.52), and of queries as numbers.
_PASSAGES, _QUERIES = {"long": (0.65, 1.0), "msmarco": (0.2, 0.84)}, (6, 16)
_OBJECTIVES = ("cotmae", "cocondenser")
_ATTENTION = ("auto", "xla", "cudnn", "triton")
# The inputs of one side of the benchmark: (does the context hold a query, is it padded to 144).
_CONTEXTS = {
    "passage_query": (True, False),
    "passage_passage": (False, True),
    "passage_query_padded": (True, True),
}


class Compiled(NamedTuple):
    """A compiled step of ours, called with a number of steps."""

    run: Callable[[Batch, int], None]
    flops: float  # of one step over padded texts
    seconds: float  # that compiling took
    memory: dict[str, int]


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
    layers: int = option(6, "layers of the BERT")
    hidden: int = option(384, "width of the BERT")
    head_size: int = option(0, "size of attention heads (0: 64, or 32 below a width of 768)")
    vocabulary: int = option(30522, "size of the vocabulary")
    pairs: int = option(16, "pairs per step")
    microbatch: int = option(0, "pairs at a time: accumulated (CoT-MAE), in chunks (coCondenser)")
    passage: int = option(144, "maximum passage length")
    context: int = option(32, "maximum query length")
    lengths: str = option(
        "long",
        "passages that nearly fill the maximum, or MS MARCO's lengths",
        choices=(*_PASSAGES,),
    )
    dropout: float = option(0.1, "dropout, on both sides")
    precision: str = option("auto", "precision of matrix products", choices=PRECISIONS)
    ours: Ours = part(Ours)
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

    def run(self) -> dict[str, Any]:
        import jax

        names = _OBJECTIVES if self.objective == "both" else (self.objective,)
        figures: dict[str, Any] = {}
        for name in names:
            figures |= self._measured(name)
        figures["shape"] = (
            f"{self.layers} x {self.hidden}, {self.pairs} pairs of {self.passage}/{self.context}"
        )
        figures["device"] = jax.devices()[0].device_kind
        figures["dropout"], figures["cores"] = self.dropout, os.cpu_count()
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
        programs: dict[Any, Compiled] = {}
        of_sort = {sort: self._ours(name, batch, programs) for sort, batch in batches.items()}
        sides: dict[str, Callable[[int], None]] = {
            sort: functools.partial(of_sort[sort].run, batch) for sort, batch in batches.items()
        }
        if not without:
            from qac_jax.bench import pretrain_torch

            sides["pytorch"] = pretrain_torch.step(self, name, batches["passage_query"])
        seconds = self._alternating(sides)
        medians = {side: statistics.median(times) for side, times in seconds.items()}
        figures: dict[str, Any] = {}
        for sort, batch in batches.items():
            step, median = of_sort[sort], medians[sort]
            tokens = sum(int(x.sum()) for n, x in batch.items() if n.endswith("_length"))
            figures[sort] = {
                "examples_per_second": self.pairs / median,
                "tokens_per_second": tokens / median,
                "flops_per_example": step.flops / self.pairs,
                "tflops": step.flops / median / 1e12,
                "fastest_ms": 1e3 * min(seconds[sort]),
                "compile_seconds": step.seconds,
            }
            if peak := step.memory.get("peak"):
                figures[sort]["memory_bytes"] = peak
            if (used := metrics.mfu(step.flops, median, jax.devices())) is not None:
                figures[sort]["mfu"] = used
        query = medians["passage_query"]
        if self.contexts == "all":
            figures["over_passage_passage"] = medians["passage_passage"] / query
            figures["over_padded"] = medians["passage_query_padded"] / query
        if "pytorch" in medians:
            figures["pytorch_examples_per_second"] = self.pairs / medians["pytorch"]
            figures["ratio"] = medians["pytorch"] / query
        if self.profile:
            folder = os.path.join(self.profile, name)
            with jax.profiler.trace(folder):
                sides["passage_query"](self.steps)
            print(metrics.how_to_open(folder))
        return {name: figures}

    def _alternating(self, sides: dict[str, Callable[[int], None]]) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for step in sides.values():  # the first call is not measured
            step(1)
        for _ in range(self.repetitions):
            for side, step in sides.items():
                began = time.perf_counter()
                step(self.steps)
                seconds[side].append((time.perf_counter() - began) / self.steps)
        return seconds

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
            ids = rng.integers(_FIRST_WORD, self.vocabulary, (self.pairs, width))
            ids[:, 0] = 2
            ids[np.arange(self.pairs), lengths - 1] = 3
            batch[name] = np.where(np.arange(width) < lengths[:, None], ids, 0).astype(np.int32)
            batch[f"{name}_length"] = lengths.astype(np.int32)
        return batch

    def heads(self) -> int:
        """Attention heads of the BERT."""
        size = self.head_size or (64 if self.hidden >= 768 else 32)
        if self.hidden % size:
            raise UserError(f"hidden={self.hidden} is not a multiple of head_size={size}")
        return self.hidden // size

    def _objective(self, name: str) -> Any:
        from qac_jax.models.bert import Bert, BertConfig
        from qac_jax.models.layers import Runtime
        from qac_jax.objectives.cocondenser import CoCondenser
        from qac_jax.objectives.cotmae import CotMae
        from qac_jax.objectives.masking import Vocabulary
        from qac_jax.training import train

        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_layers=self.layers,
            num_heads=self.heads(),
            intermediate_size=4 * self.hidden,
            max_positions=self.passage,
            hidden_dropout=self.dropout,
            attention_dropout=self.dropout,
        )
        runtime = Runtime(
            dtype=train.precision_here(self.precision),
            dropout="hash",
            remat=self.ours.remat,
            scan=self.ours.scan,
            attention=self.ours.attention,
        )
        model = Bert(config, runtime)
        vocabulary = Vocabulary(np.zeros(self.vocabulary, bool))
        if name == "cotmae":
            return CotMae(model, vocabulary=vocabulary, decoder=self.decoder)
        return CoCondenser(model, vocabulary=vocabulary)

    def _ours(self, name: str, batch: Batch, programs: dict[Any, Compiled]) -> Compiled:
        """What `qac pretrain` does at each step, batches handed over from the host included.

        programs: those already compiled, by the width of contexts and the room.
        """
        import jax

        from qac_jax.training import mesh as meshes
        from qac_jax.training import step, train
        from qac_jax.training.optimizers import Optimizer

        objective = self._objective(name)
        if not objective.splittable:
            objective = dataclasses.replace(objective, chunk=self.microbatch)
        mesh = meshes.make_mesh(devices=jax.devices()[:1])
        tx = Optimizer().build(1000, train.abstract_params(objective))
        rules = meshes.rules_named("default")
        engine = step.Engine(objective, tx, mesh, rules, microbatch=self.microbatch)
        room = step.room_of(engine, batch) if self.ours.pack else ()
        key = (batch["context"].shape[1], room)
        if key in programs:
            return programs[key]
        spec = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in batch.items()}
        began = time.perf_counter()
        compiled = step.compiled(engine, spec, room)
        seconds = time.perf_counter() - began
        state: Any = None

        def steps(batch: Batch, count: int) -> None:
            nonlocal state
            state = engine.create() if state is None else state
            for _ in range(count):
                state, metrics = compiled(state, meshes.place(batch, mesh))
            jax.block_until_ready(metrics)

        flops = step.model_flops(engine.objective, spec)
        programs[key] = Compiled(steps, flops, seconds, step.memory_of(compiled))
        return programs[key]

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
