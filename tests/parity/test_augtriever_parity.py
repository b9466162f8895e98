"""Golden cases 07a and 07b: InBatch and MoCo of Contriever and AugTriever, one training step.

Every variant but the one that its own notes call buggy ("as coded").
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_bert
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import huggingface, weights
from qac_jax.models.layers import Runtime
from qac_jax.objectives.augtriever import InBatch, MoCo


POOLING = {"average": "mean", "cls": "cls"}
BUGGY = "as_coded"
precision = golden.precision


class Compiled:
    """An encoder that is compiled once for all variants, which then run operation by operation."""

    def __init__(self, model: Any):
        self.config, self.runtime = model.config, model.runtime
        self._apply = jax.jit(model.apply)

    def apply(self, variables: Any, ids: Any, lengths: Any, *_: Any, **__: Any) -> Any:
        # Nothing is dropped in these cases.
        assert self.config.tied and self.config.scale == 1, "the sides would differ"
        return self._apply(variables, ids, lengths)


@functools.cache
def _load(folder: Path, pooling: str, precision: str) -> tuple[Any, Any]:
    runtime = Runtime(dtype=precision, scan=True)
    model, variables = huggingface.load_dual_encoder(folder, runtime=runtime, pooling=pooling)
    return Compiled(model), golden.in_precision(variables["params"], precision)


def _settings(flags: dict[str, Any]) -> dict[str, Any]:
    return {
        "temperature": flags["temperature"],
        "smoothing": flags["label_smoothing"],
        "normalize_query": flags["norm_query"],
        "normalize_passage": flags["norm_doc"],
    }


def _batch(arrays: dict[str, np.ndarray], texts: tuple[str, ...]) -> dict[str, Any]:
    lengths = {name: golden.lengths(arrays[f"{name}_mask"]) for name in ("q", *texts)}
    return {
        "query": jnp.asarray(arrays["q_tokens"]),
        "query_length": jnp.asarray(lengths["q"]),
        "passages": jnp.stack([arrays[f"{name}_tokens"] for name in texts], 1),
        "passages_length": jnp.stack([lengths[name] for name in texts], 1),
    }


def _step(objective: Any, variables: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        return objective.loss({**variables, "params": params}, batch, jax.random.key(0), True)

    return jax.value_and_grad(loss, has_aux=True)(variables["params"])


def _tree(grads: Any) -> Any:
    """The BERT of the tower, its layers one by one."""
    return {"backbone": weights.looped(jax.device_get(grads)["encoder"]["backbone"])}


def _check(loss: Any, grads: Any, case: Path, name: str, flags: Any, precision: str) -> None:
    """The loss and its gradients are the case's."""
    meta, arrays = golden.load(case)
    factor = 10.0 if flags["temperature"] < 1 else 1.0
    expected = golden.expected(arrays, f"{name}__loss", precision)
    golden.assert_loss(loss, expected, precision, factor=factor, what=name)
    trees, norms = _tree(grads), meta["grad_norms_f64"][name]
    hf_bert.check_gradients(trees, arrays, norms, f"{name}__grad__", precision, factor)


@pytest.mark.slow
@golden.each_variant("07a", "07b", kind="inbatch", without=BUGGY)
def test_in_batch(case: Path, variant: str, precision: str) -> None:
    _, arrays = golden.load(case)
    flags = golden.variants(case, "inbatch")[variant]
    model, params = _load(case / "model_q", POOLING[flags["pooling"]], precision)
    texts = ("k", *("neg" for _ in flags.get("neg_names") or ()))
    batch = _batch(arrays, texts)
    objective = InBatch(model, **_settings(flags))
    (loss, aux), grads = _step(objective, {"params": params}, batch)

    name = f"inbatch_{variant}"
    _check(loss, grads, case, name, flags, precision)
    if f"{name}__accuracy" in arrays:
        percent = float(arrays[f"{name}__accuracy"])
        assert 100 * float(aux["accuracy"]) == pytest.approx(percent)


@golden.each_variant("07a", "07b", kind="moco", without=BUGGY, slow=("T1_normdoc_cls",))
def test_moco(case: Path, variant: str, precision: str) -> None:
    meta, arrays = golden.load(case)
    flags = golden.variants(case, "moco")[variant]
    pooling = POOLING[flags["pooling"]]
    (model, params), (_, slow) = (
        _load(case / name, pooling, precision) for name in ("model_q", "model_k")
    )
    run = meta["flags"]
    objective = MoCo(
        model,
        **_settings(flags),
        queue_size=run["queue_size"],
        momentum=run["momentum"],
        similarity=flags.get("sim_metric", "dot"),
        in_batch_negatives=flags.get("use_inbatch_negatives", False),
    )
    before = jnp.asarray(arrays["queue_before"].T, precision)
    variables = {
        "params": params,
        "momentum": slow,
        "queue": {"keys": before, "pointer": jnp.int32(arrays["queue_ptr_before"])},
    }
    (loss, aux), grads = _step(objective, variables, _batch(arrays, ("k",)))

    name = f"moco_{variant}"
    _check(loss, grads, case, name, flags, precision)

    moved = aux["state"]["momentum"]
    trees = _tree(moved)
    for leaf in golden.names(arrays, "momentum_updated__"):
        expected = golden.expected(arrays, f"momentum_updated__{leaf}", precision)
        actual = hf_bert.select(trees, f"bert.{leaf}")
        rtol = 1e-15 if precision == "float64" else 2e-7  # the last digit: products may be fused
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * 1e-2, err_msg=leaf)

    queue = aux["state"]["queue"]
    after = golden.expected(arrays, f"{name}__queue_after", precision).T
    golden.assert_activation(queue["keys"], after, precision, what="queue_after")
    assert int(queue["pointer"]) == int(arrays[f"{name}__queue_ptr_after"].item())
    # Only the places of this batch have changed, and those that did not are the same bits.
    start, count = int(arrays["queue_ptr_before"]), len(arrays["q_tokens"])
    entered = (start + np.arange(count)) % run["queue_size"]
    untouched = np.setdiff1d(np.arange(run["queue_size"]), entered)
    np.testing.assert_array_equal(queue["keys"][untouched], before[untouched])
    expected = golden.expected(arrays, f"{name}__k", precision)
    golden.assert_activation(queue["keys"][entered], expected, precision, what="keys")

    keys = jnp.asarray(expected)
    queries = jnp.asarray(golden.expected(arrays, f"{name}__q", precision))
    ranked = objective.rank(queries, keys, before)
    assert float(ranked.loss.mean()) == pytest.approx(
        float(dataclasses.replace(objective, rows=2).rank(queries, keys, before).loss.mean()),
        rel=1e-6,
    )
