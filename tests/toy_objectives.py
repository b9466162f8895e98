"""Every training objective over one-layer models, batches for them, and real steps to compare."""

from typing import Any

import jax
import numpy as np
import optax
import toy_pretraining as toy

from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives.augtriever import InBatch, MoCo
from qac_jax.objectives.cross_encoder import Localized, Pointwise
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.listwise import Listwise
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.pair import Pair
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


SIZE = 16
BERT = BertConfig(64, 16, num_layers=1, num_heads=2, intermediate_size=32, max_positions=12)
TINY_T5 = T5Config(64, 16, 8, 32, num_layers=1, num_decoder_layers=1, num_heads=2)


def objective(
    name: str, dtype: str = "float32", config: BackboneConfig = BERT, **runtime: Any
) -> Any:
    if name in toy.NAMES:
        return toy.objectives(dtype, config)[name]
    options = Runtime(dtype=dtype, **runtime)
    if name == "mlm":
        return Mlm(config.build(options), Masking(0.3), toy.VOCABULARY)
    if name == "seq2seq":
        return Seq2Seq(T5(TINY_T5, options), smoothing=0.1, z_loss=1e-3)
    if name in ("pointwise", "adversarial"):
        adversarial: Any = {"adversarial_step": 0.5} if name == "adversarial" else {}
        return Pointwise(CrossEncoder(config, options, labels=2), **adversarial)
    if name == "localized":
        return Localized(CrossEncoder(config, options))
    if name == "finetune":
        dual = DualEncoder(DualEncoderConfig(config, tied=False, normalize=True), options)
        return Finetune(dual, temperature=0.1, distillation="kl", distillation_weight=0.3)
    dual = DualEncoder(DualEncoderConfig(config, pooling="mean"), options)
    if name == "official":
        return Pair(dual, alpha=0.3, denominator="official_code", negatives_group=8)
    if name == "moco":
        return MoCo(dual, queue_size=64, momentum=0.9, temperature=10.0)
    towers: Any = {"pair": Pair, "listwise": Listwise, "in_batch": InBatch, "spans": InBatch}
    return towers[name](dual, **{"alpha": 0.3} if name == "pair" else {})


Shapes = dict[str, tuple[int, ...]]
PASSAGES = Shapes(query=(6,), passages=(3, 12))
PAIR = Shapes(passage=(12,), context=(6,))
TEXTS: dict[str, Shapes] = {
    **dict.fromkeys(("finetune", "pair", "official"), PASSAGES),
    **dict.fromkeys(("in_batch", "moco", "cocondenser"), PAIR),
    **dict.fromkeys(("cotmae", "cotmae_symmetric", "retromae_pairs"), PAIR),
    **dict.fromkeys(("pointwise", "adversarial"), Shapes(pair=(12,))),
    "listwise": {"query": (2, 6), "passages": (3, 12)},
    "spans": PAIR | {"spans": (3, 8)},
    "localized": {"pairs": (3, 12)},
    "seq2seq": {"inputs": (12,), "targets": (6,)},
}


def batch_for(
    name: str, size: int = SIZE, fill: float = 1.0, seed: int = 0
) -> dict[str, np.ndarray]:
    """Texts of unequal lengths, at most this share of their padded length; among them one with
    nothing to mask and, beside queries, the same passage in two places."""
    rng = np.random.default_rng(seed)
    batch: dict[str, np.ndarray] = {}
    for feature, shape in TEXTS.get(name, {"tokens": (12,)}).items():
        ids = rng.integers(5, 60, (size, *shape), dtype=np.int32)
        ids[..., 0] = toy.VOCABULARY.cls
        ids[3, ..., 1:] = toy.VOCABULARY.unk
        lengths = rng.integers(3, int(fill * shape[-1]) + 1, ids.shape[:-1], dtype=np.int32)
        if feature == "passages":
            ids[5, 1], lengths[5, 1] = ids[2, 0], lengths[2, 0]
        batch[feature] = np.where(np.arange(shape[-1]) < lengths[..., None], ids, 0)
        batch[f"{feature}_length"] = lengths
        if feature in ("pair", "pairs"):
            types = np.arange(shape[-1]) >= rng.integers(1, 4, (*lengths.shape, 1))
            batch[f"{feature}_types"] = types.astype(np.int32)
    if name in ("pointwise", "adversarial"):
        batch["label"] = rng.integers(0, 2, size).astype(np.int32)
    if name in ("finetune", "listwise"):
        scored = (size, 2, 3) if name == "listwise" else (size, 3)
        batch["scores"] = rng.normal(size=scored).astype(np.float32)
    if name == "listwise":
        batch["lexical"] = rng.random(scored, np.float32)
        batch["own"] = rng.integers(-1, 3, (size, 2)).astype(np.int32)
    if name == "spans":  # every other query is the best of its text's spans
        batch["extract"] = np.arange(size, dtype=np.int32) % 2
    return batch


def engine(objective: Any, shape: tuple[int, int, int] = (1, 1, 1), **options: Any) -> Engine:
    """Its optimiser keeps the gradient as its state."""
    mesh = meshes.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    return Engine(objective, optax.trace(decay=0.0), mesh, seed=3, **options)


def start(made: Engine) -> Any:
    """A state drawn without compiling anything."""
    rng = np.random.default_rng(1)

    def drawn(path: Any, leaf: Any) -> np.ndarray:
        if not np.issubdtype(leaf.dtype, np.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        noise = rng.normal(0.0, 0.2, leaf.shape).astype(leaf.dtype)
        return noise + 1 if getattr(path[-1], "key", "") == "scale" else noise

    state = jax.tree_util.tree_map_with_path(drawn, made.abstract)
    return jax.tree.map(jax.device_put, state, made.shardings)


def one_step(made: Engine, batch: Any, **compiled: Any) -> tuple[dict[str, float], Any, Any]:
    """(figures, gradient, the variables but for the parameters) of a step with dropout."""
    program = made.compile_step(batch, **compiled)
    state, metrics = program(start(made), meshes.place(batch, made.mesh))
    rest = {name: part for name, part in state.variables.items() if name != "params"}
    figures = {name: float(value) for name, value in metrics.items()}
    return figures, jax.device_get(state.opt_state.trace), jax.device_get(rest)


def assert_same(found: Any, expected: Any, limit: float, figures: float = 0.0) -> None:
    """(figures, gradient, …) equal: figures within a share of themselves (the same limit unless
    given), the rest within a share of its largest entry."""
    largest = [max((float(np.abs(x).max()) for x in jax.tree.leaves(t)), default=0.0)
               for t in expected[1:]]  # fmt: skip
    assert largest[0] > 1e-3, "the gradient vanished: nothing would be compared"
    near = min(1e-7, limit * largest[0])
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(expected[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=figures or limit, atol=near)
    for scale, *trees in zip(largest, found[1:], expected[1:], strict=True):
        for a, b in zip(*map(jax.tree.leaves, trees), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=limit * scale)
