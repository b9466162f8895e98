"""Golden case 05: Tevatron's dense retriever, from token ids to the loss and its gradients."""

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
from qac_jax.objectives import contrastive, towers
from qac_jax.objectives.finetune import Finetune


precision = golden.precision


def _batch(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The case's rows as a batch of the kind `triples`."""
    queries, per = meta["n_queries"], meta["n_passages_per_query"]
    passages = arrays["p_input_ids"].reshape(queries, per, -1)
    return {
        "query": arrays["q_input_ids"],
        "query_length": golden.lengths(arrays["q_attention_mask"]),
        "passages": passages,
        "passages_length": golden.lengths(arrays["p_attention_mask"]).reshape(queries, per),
    }


@pytest.mark.slow
@golden.each_variant("05_")
def test_losses_vectors_and_gradients(case: Path, variant: str, precision: str) -> None:
    meta, arrays = golden.load(case)
    flags = meta["variants"][variant]
    model, variables = huggingface.load_dual_encoder(
        case / "model",
        runtime=Runtime(dtype=precision),
        pooling=flags["pooling"],
        normalize=flags["normalize"],
    )
    variables = golden.in_precision(variables, precision)
    objective = Finetune(model, temperature=flags["temperature"], mask_duplicates=False)
    batch = objective.prepare(_batch(meta, arrays), jax.random.key(0))
    factor = 10.0 if flags["temperature"] < 0.1 else 1.0

    def whole(params: Any, offsets: Any) -> Any:
        """The objective's loss, and its vectors, moved by offsets to get their gradients."""
        found = towers.vectors(model, {"params": params}, batch, None, 0)
        moved = jax.tree.map(jnp.add, found, offsets)
        ranked = contrastive.in_batch(*moved, temperature=flags["temperature"])
        return ranked.loss.mean(), found

    def expect(name: str) -> np.ndarray:
        return golden.expected(arrays, f"{variant}__{name}", precision)

    reps = expect("q_reps"), expect("p_reps")
    shapes = (reps[0].shape, (meta["n_queries"], -1, reps[1].shape[-1]))
    offsets = tuple(jnp.zeros_like(r).reshape(s) for r, s in zip(reps, shapes, strict=True))
    step = jax.jit(jax.value_and_grad(whole, argnums=(0, 1), has_aux=True))
    (_, vectors), (_, by_vectors) = step(variables["params"], offsets)
    for side, found, gradient in zip("qp", vectors, by_vectors, strict=True):
        known = expect(f"{side}_reps")
        golden.assert_activation(found.reshape(known.shape), known, precision, what=side)
        known = expect(f"grad_{side}_reps")
        golden.assert_gradient(gradient.reshape(known.shape), known, precision, factor=factor)

    @jax.jit
    @jax.value_and_grad
    def loss(params: Any) -> Any:
        return objective.loss({"params": params}, batch, jax.random.key(1), False)[0]

    value, gradients = loss(variables["params"])
    golden.assert_loss(value, expect("loss"), precision, factor=factor)
    trees, prefix = jax.device_get(gradients["encoder"]), f"{variant}__grad__"
    assert list(golden.names(arrays, prefix))
    norms = meta["grad_norms_f64"][variant]
    hf_bert.check_gradients(trees, arrays, norms, prefix, precision, factor)


@golden.each_case("05_")
def test_given_vectors(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    queries = np.asarray(arrays["given_q_reps"], precision)
    passages = np.asarray(arrays["given_p_reps"], precision)

    def loss(queries: Any, passages: Any) -> Any:
        grouped = passages.reshape(queries.shape[0], -1, passages.shape[-1])
        return contrastive.in_batch(queries, grouped).loss.mean()

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(queries, passages)
    expect = {
        name: golden.expected(arrays, f"given_reps__{name}", precision)
        for name in ("loss", "grad_q", "grad_p")
    }
    golden.assert_loss(value, expect["loss"], precision)
    golden.assert_gradient(gradients[0], expect["grad_q"], precision, what="q")
    golden.assert_gradient(gradients[1], expect["grad_p"], precision, what="p")
