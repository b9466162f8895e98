"""`qac bench hlo`: what the compiler makes of a training step of each objective, with and without
padding. Runs nothing, so it says the same on a busy machine."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.bench import elsewhere, kernels
from qac_jax.errors import UserError, nearest
from qac_jax.fields import option
from qac_jax.models import platform


Batch = dict[str, np.ndarray]

# Lengths of passages as shares of the longest one, and of queries in tokens.
_PASSAGES, _QUERIES = (0.5, 1.0), (6, 16)
_FIRST_WORD = 5  # after [PAD] [UNK] [CLS] [SEP] [MASK]
_PER_QUERY = 4  # passages of a query in fine-tuning

_DEVICES = ("here", *elsewhere.DEVICES)

# What is no kernel of its own.
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while call conditional after-all".split()
)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = .*?[\])}] ([a-z][a-z0-9-]*)\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_INLINED = re.compile(r"\b(?:calls|to_apply)=%?([\w.-]+)")
_CALLED = re.compile(r" call\(.*to_apply=%?([\w.-]+)")
COUNTED = {
    "fusions": ("fusion",),
    "products": ("dot", "custom-call"),
    "casts": ("convert",),
    "transposes": ("transpose",),
    "gathers": ("gather",),
    "scatters": ("scatter",),
}


@dataclasses.dataclass(frozen=True)
class Hlo:
    """Kernels, casts, transposes, scatters, bytes and FLOPs of compiled training steps.

    A step is forward, backward and AdamW on pairs (fine-tuning: queries with 4 passages each) of a
    BERT. Bytes are what the compiler's cost analysis says is read and written, FLOPs of matrix
    products those of the formula, as computed. Loops are counted once. The memory that `qac plan`
    says of padded steps stands over what the compiler needs.

    With --device h100 the program is the one for that GPU, which need not be here: gigabytes are
    counted kernel by kernel, as products, attention, transposes, copies and the rest. It needs
    JAX's plugin for CUDA (pip install 'qac_jax[cuda]').
    """

    EXAMPLE = "qac bench hlo --objectives mlm,cotmae --table docs/results/speed.md"

    objectives: str = option("all", "objectives, separated by commas, or all")
    layers: int = option(2, "layers of the BERT")
    hidden: int = option(768, "width of the BERT")
    vocabulary: int = option(30522, "size of the vocabulary")
    examples: int = option(64, "examples per step")
    passage: int = option(144, "maximum passage length")
    context: int = option(32, "maximum query length")
    precision: str = option("float32", "precision", choices=("float32", "bfloat16"))
    dropout: float = option(0.1, "dropout")
    device: str = option(
        "here", "what the program is for: this machine, or a GPU that is not here", choices=_DEVICES
    )
    table: str = option(
        "",
        "Markdown file whose part between <!-- hlo --> marks (<!-- hlo h100 -->) is written anew",
    )

    def run(self) -> dict[str, Any]:
        if self.device != "here":
            with platform.made_for("gpu"):
                return self._figures(elsewhere.devices(self.device))
        import jax

        # The same program before machine code is made of it, which takes most of the time.
        jax.config.update("jax_disable_most_optimizations", True)
        return self._figures(jax.devices()[:1])

    def _figures(self, devices: list[Any]) -> dict[str, Any]:
        objectives = self._objectives()
        chosen = list(objectives) if self.objectives == "all" else self.objectives.split(",")
        for name in chosen:
            if name not in objectives:
                raise UserError(f"objective {name!r} is not known; {nearest(name, objectives)}")
        figures: dict[str, Any] = {}
        for name in chosen:
            batch = self.batch(name)
            figures[name] = {
                way: self._counted(objectives[name], batch, devices, way == "packed")
                for way in ("padded", "packed")
            }
        if self.table:
            here = self.device == "here"
            columns, mark = (COLUMNS, "hlo") if here else (GPU_COLUMNS, f"hlo {self.device}")
            _write(Path(self.table), mark, "\n".join(rows(figures, columns)))
        return figures

    def _counted(
        self, objective: Any, batch: Batch, devices: list[Any], pack: bool
    ) -> dict[str, Any]:
        import optax

        from qac_jax.training import mesh as meshes
        from qac_jax.training import packing, report
        from qac_jax.training.step import Engine, model_flops

        mesh = meshes.make_mesh(devices=devices)
        engine = Engine(objective, optax.adamw(1e-4), mesh, meshes.rules_named("default"))
        room = packing.room(engine, batch) if pack else ()
        engine = packing.packed(engine, room)
        compiled = engine.compile_step(batch)
        text = compiled.as_text() or ""
        lengths = {n: x for n, x in batch.items() if n.endswith("_length")}
        padded = sum(batch[n.removesuffix("_length")].size for n in lengths)
        computed = sum(
            batch[n.removesuffix("_length")].size
            * dict(room).get(batch[n.removesuffix("_length")].shape[-1], 1.0)
            for n in lengths
        )
        real = sum(int(x.sum()) for x in lengths.values())
        return {
            **(_of_device(compiled, text) if self.device == "here" else _of_gpu(text)),
            "gigaflops": model_flops(engine.objective, batch) / 1e9,
            "temporary_megabytes": report.memory(compiled).get("temporary", 0) / 1e6,
            "padding": 1.0 - real / computed,
            "tokens": real / padded,
        }

    def _objectives(self) -> dict[str, Any]:
        from qac_jax.models.bert import BertConfig
        from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
        from qac_jax.models.layers import Runtime
        from qac_jax.objectives.cocondenser import CoCondenser
        from qac_jax.objectives.condenser import Condenser
        from qac_jax.objectives.cotmae import CotMae
        from qac_jax.objectives.cross_encoder import Localized
        from qac_jax.objectives.finetune import Finetune
        from qac_jax.objectives.masking import Vocabulary
        from qac_jax.objectives.mlm import Mlm
        from qac_jax.objectives.retromae import RetroMae

        if self.hidden % 64:
            raise UserError(f"hidden={self.hidden} is not a multiple of 64, the width of a head")
        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_layers=self.layers,
            num_heads=self.hidden // 64,
            intermediate_size=4 * self.hidden,
            max_positions=self.passage,
            hidden_dropout=self.dropout,
            attention_dropout=self.dropout,
        )
        runtime = Runtime(dtype=self.precision, dropout="hash")
        model, vocabulary = config.build(runtime), Vocabulary(np.zeros(self.vocabulary, bool))
        return {
            "mlm": Mlm(model, vocabulary=vocabulary),
            "condenser": Condenser(model, vocabulary=vocabulary),
            "cocondenser": CoCondenser(model, vocabulary=vocabulary),
            "cotmae": CotMae(model, vocabulary=vocabulary),
            "retromae": RetroMae(model, vocabulary=vocabulary),
            "finetune": Finetune(DualEncoder(DualEncoderConfig(config), runtime)),
            "cross_encoder": Localized(CrossEncoder(config.with_parts("pooler"), runtime)),
        }

    def batch(self, name: str) -> Batch:
        """Texts of real lengths for an objective."""
        rng = np.random.default_rng(0)
        low, high = (round(share * self.passage) for share in _PASSAGES)
        several = ("passages", "pairs")
        features = {
            "mlm": ("tokens",),
            "condenser": ("tokens",),
            "retromae": ("tokens",),
            "finetune": ("query", "passages"),
            "cross_encoder": ("pairs",),
        }.get(name, ("passage", "context"))
        batch: Batch = {}
        for feature in features:
            short = feature in ("query", "context")
            shape = (self.examples, _PER_QUERY) if feature in several else (self.examples,)
            width = self.context if short else self.passage
            least, most = _QUERIES if short else (low, high + 1)
            sizes = np.minimum(rng.integers(least, most, shape), width).astype(np.int32)
            ids = rng.integers(_FIRST_WORD, self.vocabulary, (*shape, width))
            batch[feature] = np.where(np.arange(width) < sizes[..., None], ids, 0).astype(np.int32)
            batch[f"{feature}_length"] = sizes
            if name == "cross_encoder":
                batch[f"{feature}_types"] = np.zeros_like(batch[feature])
        return batch


def _of_device(compiled: Any, text: str) -> dict[str, Any]:
    cost: Any = compiled.cost_analysis() or {}
    return {**counts(text), "gigabytes": float(cost.get("bytes accessed", 0.0)) / 1e9}


def _of_gpu(text: str) -> dict[str, Any]:
    found = kernels.kernels(text)
    moved = dict.fromkeys(("product", "attention", "transpose", "copy", "rest"), 0.0)
    return {"kernels": sum(kernel.times for kernel in found), **moved, **kernels.gigabytes(found)}


def counts(text: str) -> dict[str, int]:
    """Kernels of a compiled program, and operations by kind, those inside of fusions too."""
    inlined = set(_INLINED.findall(text)) - set(_CALLED.findall(text))
    kernels, operations = 0, collections.Counter[str]()
    for computation, operation in _operations(text):
        operations[operation] += 1
        kernels += computation not in inlined and operation not in _FREE
    found = {name: sum(operations[kind] for kind in kinds) for name, kinds in COUNTED.items()}
    return {"kernels": kernels, **found}


def _operations(text: str) -> Iterator[tuple[str, str]]:
    """(computation, operation) of every instruction."""
    where = ""
    for line in text.splitlines():
        if begin := _COMPUTATION.match(line):
            where = begin[1]
        elif match := _INSTRUCTION.match(line):
            yield where, match[1]


COLUMNS = {
    **{name: f"{{{name}}}" for name in ("kernels", *COUNTED)},
    "GB": "{gigabytes:.1f}",
    "GFLOPs": "{gigaflops:,.0f}",
    "temporary MB": "{temporary_megabytes:,.0f}",
    "padding": "{padding:.1%}",
}
GPU_COLUMNS = {
    "kernels": "{kernels}",
    "GB: products": "{product:.1f}",
    "attention": "{attention:.1f}",
    "transposes": "{transpose:.1f}",
    "copies": "{copy:.1f}",
    "the rest": "{rest:.1f}",
    "GFLOPs": "{gigaflops:,.0f}",
    "temporary MB": "{temporary_megabytes:,.0f}",
    "padding": "{padding:.1%}",
}


def rows(figures: dict[str, Any], columns: dict[str, str] = COLUMNS) -> list[str]:
    """The figures as a table in Markdown, padded → packed."""
    head = ("objective", *columns)
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, ways in figures.items():
        cells = (
            f"{form.format(**ways['padded'])} → {form.format(**ways['packed'])}"
            for form in columns.values()
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _write(path: Path, name: str, table: str) -> None:
    mark, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if mark not in text or end not in text:
        raise UserError(f"{path} has no line {mark} and after it {end}; add them where it belongs")
    before, rest = text.split(mark, 1)
    path.write_text(f"{before}{mark}\n{table}\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")
