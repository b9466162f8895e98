"""What must not change values or gradients: scan, remat, padding, batch splits, MLM budget."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import weights
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.heads import BidirectionalHead, CausalDecoder
from qac_jax.models.layers import Runtime


CONFIG = BertConfig(50, 16, 2, 2, 24, 32, pooler=True, mlm_head=True)
BATCH, LENGTH = 4, 12
LENGTHS = np.array([12, 7, 3, 9], np.int32)
X64 = Runtime(dtype="float64")


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def _ids(length: int = LENGTH) -> np.ndarray:
    ids = np.random.default_rng(0).integers(1, CONFIG.vocab_size, (BATCH, LENGTH))
    ids = np.where(np.arange(LENGTH) < LENGTHS[:, None], ids, 0)
    return np.pad(ids, ((0, 0), (0, length - LENGTH))).astype(np.int32)


def _keys() -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(5), jnp.arange(BATCH))


def _random(module: nn.Module, *inputs: Any) -> Any:
    """Every parameter random (also biases and norms), in float64."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    leaves, structure = jax.tree.flatten(nn.meta.unbox(shapes))
    rng = np.random.default_rng(1)
    return jax.tree.unflatten(structure, [rng.normal(0.1, 0.3, x.shape) for x in leaves])


@functools.cache
def _bert_variables() -> Any:
    return _random(Bert(CONFIG, X64), _ids(), LENGTHS)


def _stacked(params: Any) -> Any:
    return weights.scanned(params)


def _assert_trees_close(actual: Any, expected: Any) -> None:
    def close(path, a, b):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10, err_msg=name)

    structures = [str(jax.tree.structure(tree)) for tree in (actual, expected)]
    assert structures[0] == structures[1]
    jax.tree_util.tree_map_with_path(close, actual, expected)


def _models(runtime: Runtime) -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """Module and inputs of everything that is a stack of layers."""
    rng = np.random.default_rng(2)
    cls, rest = rng.normal(size=(BATCH, 16)), rng.normal(size=(BATCH, LENGTH, 16))
    return {
        "bert": (Bert(CONFIG, runtime), (_ids(), LENGTHS, None)),
        "bidirectional": (BidirectionalHead(CONFIG, runtime, 2), (cls, rest, LENGTHS)),
        "causal": (CausalDecoder(CONFIG, runtime, 2, window=3), (cls, rest, LENGTHS)),
    }


def _value_and_gradient(kind: str, runtime: Runtime, variables: Any, keys: Any) -> Any:
    module, inputs = _models(runtime)[kind]

    def total(variables: Any) -> jax.Array:
        out = module.apply(variables, *inputs, keys)
        last = out.last if kind == "bert" else out
        weights = jnp.cos(jnp.arange(last.size)).reshape(last.shape)
        return (last * weights).sum()

    return jax.jit(jax.value_and_grad(total))(variables)


@functools.cache
def _reference(kind: str) -> tuple[Any, Any]:
    """Variables, and (value, gradient) of the plain loop with dropout."""
    module, inputs = _models(X64)[kind]
    variables = _bert_variables()
    if kind != "bert":
        variables = _random(module, *inputs)
    return variables, _value_and_gradient(kind, X64, variables, _keys())


SLOW = pytest.mark.slow  # each compiles two gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "remat"), [("bert", "layer"), ("causal", "none"), ("bidirectional", "none")]
)
def test_scan_is_loop_and_remat_is_none(kind: str, remat: str) -> None:
    """With dropout on: the scan draws the loop's masks, recomputation the first pass's."""
    variables, (value, gradient) = _reference(kind)
    scan = dataclasses.replace(X64, remat=remat, scan=True)
    stacked = {"params": _stacked(variables["params"])}
    actual = _value_and_gradient(kind, scan, stacked, _keys())
    _assert_trees_close(actual[0], value)
    unstacked = weights.looped(actual[1]["params"])
    _assert_trees_close(unstacked, gradient["params"])
    if remat != "none":
        loop = dataclasses.replace(scan, scan=False)
        _assert_trees_close(_value_and_gradient(kind, loop, variables, _keys()), (value, gradient))


@pytest.mark.parametrize("scan", [False, True], ids=["loop", "scan"])
def test_first_rows_only(scan: bool) -> None:
    """Where only [CLS] is wanted the last layer computes nothing else, with the same result."""
    variables = _bert_variables()
    whole = Bert(CONFIG, X64).apply(variables, _ids(), LENGTHS)
    if scan:
        variables = {"params": _stacked(variables["params"])}
    bert = Bert(CONFIG, dataclasses.replace(X64, scan=scan))
    first = bert.apply(variables, _ids(), LENGTHS, rows=1)
    assert first.last.shape == (BATCH, 1, CONFIG.hidden_size)
    _assert_trees_close((first.cls, first.pooled), (whole.cls, whole.pooled))


def test_mlm_at_masked_positions_is_mlm_at_all() -> None:
    """Loss and gradient, from a fixed budget of positions and a padded vocabulary."""
    bert, variables = Bert(CONFIG, X64), _bert_variables()
    budget = 4
    positions = np.array([[1, 5, 11, 0], [2, 0, 0, 0], [1, 2, 0, 0], [8, 3, 0, 0]])
    weights = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]])
    labels = np.random.default_rng(3).integers(0, CONFIG.vocab_size, (BATCH, budget))
    dense = np.full((BATCH, LENGTH), -100)
    for row, column in zip(*np.nonzero(weights), strict=True):
        dense[row, positions[row, column]] = labels[row, column]

    def cross_entropy(logits: jax.Array, labels: np.ndarray, weights: np.ndarray) -> jax.Array:
        log = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(log, labels[..., None], axis=-1)[..., 0]
        return -(picked * weights).sum() / weights.sum()

    def full(variables: Any) -> jax.Array:
        last = bert.apply(variables, _ids(), LENGTHS).last
        logits = bert.apply(variables, last, method="mlm_logits")
        assert logits.shape[-1] == CONFIG.vocab_size
        return cross_entropy(logits, np.maximum(dense, 0), dense != -100)

    def budgeted(variables: Any) -> jax.Array:
        last = bert.apply(variables, _ids(), LENGTHS).last
        logits = bert.apply(variables, last, positions, True, method="mlm_logits")
        assert logits.shape == (BATCH, budget, 128)
        return cross_entropy(logits, labels, weights)

    actual = jax.jit(jax.value_and_grad(budgeted))(variables)
    _assert_trees_close(actual, jax.jit(jax.value_and_grad(full))(variables))


def _encoders(runtime: Runtime) -> dict[str, nn.Module]:
    mean = DualEncoderConfig(CONFIG, pooling="mean", normalize=True, projection=6)
    return {
        "mean": DualEncoder(mean, runtime),
        "cls": DualEncoder(DualEncoderConfig(CONFIG, tied=False), runtime),
        "cross": CrossEncoder(CONFIG, runtime, labels=2),
    }


@pytest.mark.parametrize("kind", [pytest.param("mean", marks=SLOW), "cls", "cross"])
def test_bucket_length_does_not_matter(kind: str) -> None:
    module = _encoders(X64)[kind]
    variables = _random(module, _ids(), LENGTHS)
    short = module.apply(variables, _ids(), LENGTHS)
    long = module.apply(variables, _ids(20), LENGTHS)
    _assert_trees_close(long, short)


def test_padding_does_not_reach_real_positions() -> None:
    """In every module, and whatever the padding ids are."""
    bert, variables = Bert(CONFIG, X64), _bert_variables()
    other = np.where(np.arange(LENGTH) < LENGTHS[:, None], _ids(), 7)
    real = np.arange(LENGTH) < LENGTHS[:, None]
    a = bert.apply(variables, _ids(), LENGTHS).last
    b = bert.apply(variables, other, LENGTHS).last
    _assert_trees_close(a[real], b[real])
    assert not np.allclose(a[~real], b[~real])
    for kind in ("bidirectional", "causal"):
        module, (cls, rest, lengths) = _models(X64)[kind]
        variables = _random(module, cls, rest, lengths)
        noisy = np.where(real[..., None], rest, rest + 1.0)
        a = module.apply(variables, cls, rest, lengths)
        b = module.apply(variables, cls, noisy, lengths)
        _assert_trees_close(a[real], b[real])


def test_splitting_a_batch_changes_no_dropout() -> None:
    bert, variables = Bert(CONFIG, X64), _bert_variables()
    run = jax.jit(lambda *a: bert.apply(variables, *a).last)
    whole = run(_ids(), LENGTHS, None, _keys())
    halves = [
        run(_ids()[rows], LENGTHS[rows], None, _keys()[rows]) for rows in (slice(0, 2), slice(2, 4))
    ]
    _assert_trees_close(jnp.concatenate(halves), whole)
    assert not np.allclose(whole, run(_ids(), LENGTHS, None, None))
