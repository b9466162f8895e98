"""Golden cases 07a and 07b: InBatch and MoCo of Contriever and AugTriever, one training step.

Every variant but the one that its own notes call buggy ("as coded").
"""

from __future__ import annotations

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

from qac_jax.hub import huggingface
from qac_jax.models.layers import Runtime
from qac_jax.objectives.augtriever import InBatch, MoCo


POOLING = {"average": "mean", "cls": "cls"}
BUGGY = "as_coded"


def variants(kind: str) -> list[Any]:
    """(case, variant name, its flags): a table for both kinds, or one for each."""
    found: list[Any] = []
    for prefix in ("07a", "07b"):
        for case in golden.cases(prefix) or [golden.root() / f"{prefix}-is-missing"]:
            table = golden.load(case)[0]["variants"] if case.is_dir() else {"missing": {}}
            for name, flags in table.get(kind, table).items():
                if BUGGY not in name:
                    label = f"{case.relative_to(golden.root())}-{name}"
                    found.append(pytest.param(case, name, flags, id=label))
    return found


# The exact one is the sharper test; each precision compiles its own encoders.
@pytest.fixture(params=[pytest.param("float32", marks=pytest.mark.slow), "float64"])
def precision(request):
    with golden.precision_context(request.param):
        yield request.param


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
def _model(folder: Path, pooling: str, precision: str) -> Any:
    runtime = Runtime(dtype=precision, scan=True)
    return Compiled(huggingface.load_dual_encoder(folder, runtime=runtime, pooling=pooling)[0])


@functools.cache
def _params(folder: Path, precision: str) -> Any:
    runtime = Runtime(dtype=precision, scan=True)
    _, variables = huggingface.load_dual_encoder(folder, runtime=runtime, pooling="mean")
    return golden.in_precision(variables["params"], precision)


def _settings(flags: dict[str, Any]) -> dict[str, Any]:
    return {
        "temperature": flags["temperature"],
        "smoothing": flags["label_smoothing"],
        "normalize_query": flags["norm_query"],
        "normalize_passage": flags["norm_doc"],
    }


def _batch(arrays: dict[str, np.ndarray], texts: tuple[str, ...]) -> dict[str, Any]:
    def whole(name: str) -> tuple[Any, Any]:
        return jnp.asarray(arrays[f"{name}_tokens"]), jnp.asarray(
            golden.lengths(arrays[f"{name}_mask"])
        )

    query, query_length = whole("q")
    passages = [whole(name) for name in texts]
    return {
        "query": query,
        "query_length": query_length,
        "passages": jnp.stack([ids for ids, _ in passages], 1),
        "passages_length": jnp.stack([lengths for _, lengths in passages], 1),
    }


def _step(objective: Any, variables: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        return objective.loss({**variables, "params": params}, batch, jax.random.key(0), True)

    return jax.value_and_grad(loss, has_aux=True)(variables["params"])


def _assert_gradients(grads: Any, meta: Any, arrays: Any, variant: str, precision: str) -> None:
    trees = hf_bert_tree(jax.device_get(grads))
    factor = 10.0 if meta_temperature(meta, variant) < 1 else 1.0
    for name in golden.names(arrays, f"{variant}__grad__"):
        expected = golden.expected(arrays, f"{variant}__grad__{name}", precision)
        actual = hf_bert.select(trees, f"bert.{name}")
        golden.assert_gradient(actual, expected, precision, factor=factor, what=name)
    norms = meta["grad_norms_f64"][variant]
    assert norms
    for name, norm in norms.items():
        plain = "bert." + name[min(name.index(part) for part in PARTS if part in name) :]
        actual = hf_bert.select(trees, plain)
        golden.assert_gradient_norm(actual, norm, precision, factor=factor, what=name)


# Where a parameter's own name begins, behind what the reference wraps its encoder in.
PARTS = ("embeddings.", "encoder.layer.")


def meta_temperature(meta: Any, variant: str) -> float:
    kind, name = variant.split("_", 1)
    table = meta["variants"]
    return table.get(kind, table)[name]["temperature"]


def hf_bert_tree(grads: Any) -> Any:
    """The BERT of the tower, its layers one by one."""
    bert = dict(grads["encoder"]["backbone"])
    stacked = bert["layers"]
    count = jax.tree.leaves(stacked)[0].shape[0]
    bert["layers"] = {
        str(i): jax.tree.map(lambda x, layer=i: x[layer], stacked) for i in range(count)
    }
    return {"backbone": bert}


@pytest.mark.parametrize(("case", "name", "flags"), variants("inbatch"))
def test_in_batch(case: Path, name: str, flags: dict[str, Any], precision: str) -> None:
    meta, arrays = golden.load(case)
    model = _model(case / "model_q", POOLING[flags["pooling"]], precision)
    params = _params(case / "model_q", precision)
    texts = ("k", *("neg" for _ in flags.get("neg_names") or ()))
    batch = _batch(arrays, texts)
    objective = InBatch(model, **_settings(flags))
    (loss, aux), grads = _step(objective, {"params": params}, batch)

    factor = 10.0 if flags["temperature"] < 1 else 1.0
    variant = f"inbatch_{name}"
    expected = golden.expected(arrays, f"{variant}__loss", precision)
    golden.assert_loss(loss, expected, precision, factor=factor, what=name)
    if f"{variant}__accuracy" in arrays:
        percent = float(arrays[f"{variant}__accuracy"])
        assert 100 * float(aux["accuracy"]) == pytest.approx(percent)
    _assert_gradients(grads, meta, arrays, variant, precision)


@pytest.mark.parametrize(("case", "name", "flags"), variants("moco"))
def test_moco(case: Path, name: str, flags: dict[str, Any], precision: str) -> None:
    meta, arrays = golden.load(case)
    model = _model(case / "model_q", POOLING[flags["pooling"]], precision)
    params, slow = (_params(case / name, precision) for name in ("model_q", "model_k"))
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

    factor = 10.0 if flags["temperature"] < 1 else 1.0
    variant = f"moco_{name}"
    expected = golden.expected(arrays, f"{variant}__loss", precision)
    golden.assert_loss(loss, expected, precision, factor=factor, what=name)
    _assert_gradients(grads, meta, arrays, variant, precision)

    moved = aux["state"]["momentum"]
    trees = hf_bert_tree(jax.device_get(moved))
    for leaf in golden.names(arrays, "momentum_updated__"):
        expected = golden.expected(arrays, f"momentum_updated__{leaf}", precision)
        actual = hf_bert.select(trees, f"bert.{leaf}")
        rtol = 1e-15 if precision == "float64" else 2e-7  # the last digit: products may be fused
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * 1e-2, err_msg=leaf)

    queue = aux["state"]["queue"]
    after = golden.expected(arrays, f"{variant}__queue_after", precision).T
    golden.assert_activation(queue["keys"], after, precision, what="queue_after")
    assert int(queue["pointer"]) == int(arrays[f"{variant}__queue_ptr_after"].item())
    # Only the places of this batch have changed, and those that did not are the same bits.
    start, count = int(arrays["queue_ptr_before"]), len(arrays["q_tokens"])
    entered = (start + np.arange(count)) % run["queue_size"]
    untouched = np.setdiff1d(np.arange(run["queue_size"]), entered)
    np.testing.assert_array_equal(queue["keys"][untouched], before[untouched])
    expected = golden.expected(arrays, f"{variant}__k", precision)
    golden.assert_activation(queue["keys"][entered], expected, precision, what="keys")

    keys = jnp.asarray(expected)
    queries = jnp.asarray(golden.expected(arrays, f"{variant}__q", precision))
    ranked = objective.rank(queries, keys, before)
    assert float(ranked.loss.mean()) == pytest.approx(
        float(dataclasses.replace(objective, rows=2).rank(queries, keys, before).loss.mean()),
        rel=1e-6,
    )
