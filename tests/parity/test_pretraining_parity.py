"""Losses and gradients of golden cases 02, 03, 03c, 04 and 04c, by the objectives themselves.

The masks come from the cases, so prepared batches are made here; what `prepare` adds (weights,
targets) is made with its own functions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_bert
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import huggingface, weights
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives import cotmae
from qac_jax.objectives.cocondenser import CoCondenser
from qac_jax.objectives.condenser import HEAD, Condenser
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.mlm import MaskedText, Mlm, shared


# In float64 every variant is compared at 1e-9; float32 sees the same programs at its tolerances.
@pytest.fixture(params=[pytest.param("float32", marks=pytest.mark.slow), "float64"])
def precision(request):
    with golden.precision_context(request.param):
        yield request.param


def masked_text(arrays: Mapping[str, np.ndarray], rows: slice, prefix: str = "") -> MaskedText:
    """The case's own masks as positions and labels."""
    ids, labels = arrays[f"{prefix}input_ids"][rows], arrays[f"{prefix}labels"][rows]
    lengths = golden.lengths(arrays[f"{prefix}attention_mask"][rows])
    wanted = labels != -100
    most = max(1, wanted.sum(1).max())
    positions = np.argsort(~wanted, axis=1, kind="stable")[:, :most]
    real = np.take_along_axis(wanted, positions, 1)
    chosen = np.where(real, np.take_along_axis(labels, positions, 1), 0)
    return MaskedText(*map(jnp.asarray, (ids, lengths, positions, chosen, real.astype(float))))


EVERY, FIRST, SECOND = slice(None), slice(0, None, 2), slice(1, None, 2)


class Case:
    """A case, its BERT, its heads as parameters of an objective."""

    def __init__(self, case: Path, precision: str):
        self.meta, self.arrays = golden.load(case)
        self.precision = precision
        runtime = Runtime(dtype=precision)
        self.bert, variables = huggingface.load(case / "model", runtime)
        place = case if list(case.glob("*.safetensors")) else case / "model"
        self.heads = {
            name: head[1]["params"]
            for name, head in huggingface.load_heads(place, self.bert.config, runtime).items()
        }
        self.params = variables["params"]

    def run(self, objective: Any, batch: Any, names: Mapping[str, str]) -> Any:
        """((loss, scalars), gradients by the reference's names); names: our head -> the file's."""
        params = {**self.params, **{ours: self.heads[file] for ours, file in names.items()}}
        variables = golden.in_precision({"params": params}, self.precision)

        def loss(variables: Any) -> Any:
            return objective.loss(variables, batch, jax.random.key(0), True)

        # Operation by operation: variants differ in little, and share what is compiled.
        found, gradients = jax.device_get(jax.value_and_grad(loss, has_aux=True)(variables))
        gradients = weights.looped(gradients["params"])
        trees = {file: gradients.pop(ours) for ours, file in names.items()}
        return found, {**trees, "backbone": gradients}

    def expect(self, name: str) -> np.ndarray:
        return golden.expected(self.arrays, name, self.precision)

    def check_losses(self, found: Mapping[str, Any], variant: str, factor: float = 1.0) -> None:
        """Every loss of ours that is given is the reference's of that name."""
        for name, value in found.items():
            what = f"{variant}__{name}"
            golden.assert_loss(value, self.expect(what), self.precision, factor=factor, what=what)

    def check_gradients(self, trees: Any, variant: str, factor: float = 1.0) -> None:
        check = functools.partial(golden.assert_gradient, precision=self.precision, factor=factor)
        stored = list(golden.names(self.arrays, f"{variant}__grad__"))
        norms = self.meta["grad_norms_f64"][variant]
        assert norms, "the case holds no gradients"
        for name in stored:
            expected = self.expect(f"{variant}__grad__{name}")
            check(hf_bert.select(trees, name), expected, what=name)
        largest = max(norms.values())
        for name, norm in norms.items():
            golden.assert_gradient_norm(
                hf_bert.select(trees, name), norm, self.precision, factor=factor, what=name
            )
        # Parameters that the reference gives no gradient have none here.
        theirs = sum(norm**2 for norm in norms.values()) ** 0.5
        ours = sum(float(np.square(x).sum()) for x in jax.tree.leaves(trees)) ** 0.5
        assert abs(ours - theirs) <= 1e-4 * factor * max(largest, theirs)


@functools.cache
def load(case: Path, precision: str) -> Case:
    return Case(case, precision)


@pytest.mark.parametrize(("case", "variant"), golden.case_variants("02_"))
def test_condenser(case: Path, variant: str, precision: str) -> None:
    this = load(case, precision)
    flags = this.meta["variants"][variant]
    objective = Condenser(
        this.bert,
        head_layers=flags["n_head_layers"],
        skip_from=flags["skip_from"],
        late_mlm=flags["late_mlm"],
    )
    batch = {"text": shared([masked_text(this.arrays, EVERY)])[0], "keys": None}
    (loss, aux), gradients = this.run(objective, batch, {HEAD: "c_head"})
    losses = {"total_loss": loss, "head_mlm_loss": aux["head_mlm_loss"]}
    if flags["late_mlm"]:
        losses["backbone_mlm_loss"] = aux["late_mlm_loss"]
    this.check_losses(losses, variant)
    this.check_gradients(gradients, variant)


def pairs(arrays: Mapping[str, np.ndarray], group: int = 0) -> Any:
    """Rows 2i and 2i + 1 as passage and context."""
    texts = shared([masked_text(arrays, FIRST), masked_text(arrays, SECOND)], group)
    names = ("passage", "context")
    return {**dict(zip(names, texts, strict=True)), "keys": dict.fromkeys(names)}


def cocondenser_03(case: Path) -> list[str]:
    """Variants are the prefixes of the stored losses."""
    return list(golden.load(case)[0]["grad_norms_f64"])


CASES_03 = [
    pytest.param(case, variant, id=f"{case.relative_to(golden.root())}-{variant}")
    for case in golden.cases("03_")
    for variant in cocondenser_03(case)
]


def test_case_03_is_there() -> None:
    assert CASES_03


@pytest.mark.parametrize(("case", "variant"), CASES_03)
def test_cocondenser(case: Path, variant: str, precision: str) -> None:
    this = load(case, precision)
    flags = this.meta["flags"]
    cached = variant.endswith("_gradcache")
    late = variant.startswith("late1")
    group = flags["gradcache_chunk"] if cached else 0
    objective = CoCondenser(
        this.bert,
        head_layers=flags["n_head_layers"],
        skip_from=flags["skip_from"],
        late_mlm=late,
        mlm_scale=2.0 if cached else 1.0,
        mlm_group=group,
    )
    batch = pairs(this.arrays, group)
    (loss, aux), gradients = this.run(objective, batch, {HEAD: "c_head"})
    if cached:
        this.check_losses({"reported_total_loss": loss}, variant)
        # Of the parts only the sum over chunks is stored: each chunk's MLM, scaled as it enters.
        mlm = 2 * (aux["head_mlm_loss"] + (aux["late_mlm_loss"] if late else 0))
        chunks = this.expect(f"{variant}__chunk_lm_losses")
        scale = group / flags["per_device_train_batch_size"]
        sums = {scale * float(np.sum(chunks)), float(np.sum(chunks))}
        assert any(abs(mlm - total) <= 1e-5 * abs(total) for total in sums), (mlm, chunks)
    else:
        losses = {
            "total_loss": loss,
            "contrastive_loss": aux["contrastive_loss"],
            "head_mlm_loss": aux["head_mlm_loss"],
        }
        if late:
            losses["backbone_mlm_loss"] = aux["late_mlm_loss"]
        this.check_losses(losses, variant)
    this.check_gradients(gradients, variant)


@pytest.mark.parametrize("case", golden.parameters("03_"))
def test_cocondenser_gradient_of_vectors(case: Path, precision: str) -> None:
    this = load(case, precision)
    objective = CoCondenser(this.bert)
    cls = jnp.asarray(this.expect("cls"), precision)

    def contrast(cls: jax.Array) -> jax.Array:
        return jnp.mean(objective.contrast(cls[0::2], cls[1::2]).loss)

    gradient = jax.grad(contrast)(cls)
    names = list(golden.names(this.arrays, "", "__rep_grads"))
    assert names
    for name in names:
        golden.assert_gradient(gradient, this.expect(f"{name}__rep_grads"), precision, what=name)


@pytest.mark.parametrize(("case", "variant"), golden.case_variants("03c_"))
def test_cocondenser_of_queries(case: Path, variant: str, precision: str) -> None:
    this = load(case, precision)
    flags = this.meta["variants"][variant]
    objective = CoCondenser(
        this.bert,
        head_layers=flags["n_head_layers"],
        skip_from=flags["skip_from"],
        late_mlm=flags["late_mlm"],
        temperature=flags["cl_temp"],
        coefficient=flags["cl_coef"],
    )
    factor = 10.0 if flags["cl_temp"] < 1 else 1.0
    (loss, aux), gradients = this.run(objective, pairs(this.arrays), {HEAD: "c_head"})
    losses = {
        "total_loss": loss,
        "head_mlm_loss": aux["head_mlm_loss"],
        "clloss": objective.coefficient * aux["contrastive_loss"],
    }
    if flags["late_mlm"]:
        losses["bert_mlm_loss"] = aux["late_mlm_loss"]
    this.check_losses(losses, variant, factor)
    this.check_gradients(gradients, variant, factor)


@pytest.mark.parametrize(("case", "variant"), golden.case_variants("04_"))
def test_cotmae(case: Path, variant: str, precision: str) -> None:
    """Rows 2i and 2i + 1 are partners: each is encoded, and its partner decoded from its vector."""
    this = load(case, precision)
    flags = this.meta["flags"][variant]
    if not flags["enable_head_mlm"]:
        check_cotmae_without_its_decoder(this, variant)
        return
    objective = CotMae(
        this.bert,
        decoder="mlm",
        mlm_layers=flags["n_head_layers"],
        mlm_coefficient=flags["head_mlm_coef"],
        symmetric=True,
    )
    # Row j of the decoder is decoded from vector j.
    encoded = shared([masked_text(this.arrays, rows) for rows in (FIRST, SECOND)])
    decoded = shared([masked_text(this.arrays, rows, "decoder_") for rows in (FIRST, SECOND)])
    batch = {"encoded": encoded, "decoded": {"mlm": decoded}, "keys": [None, None]}
    (loss, aux), gradients = this.run(objective, batch, {cotmae.HEADS["mlm"]: "c_head"})
    losses = {
        "total_loss": loss,
        "encoder_mlm_loss": aux["encoder_mlm_loss"],
        "head_mlm_loss_logged": flags["head_mlm_coef"] * aux["mlm_decoder_loss"],
    }
    this.check_losses(losses, variant)
    unweighted = this.expect("decoder_mlm_loss_unweighted")
    golden.assert_loss(aux["mlm_decoder_loss"], unweighted, precision)
    this.check_gradients(gradients, variant)


def check_cotmae_without_its_decoder(this: Case, variant: str) -> None:
    """Then it is masked language modelling."""
    text = shared([masked_text(this.arrays, EVERY)])[0]
    batch = {**text._asdict(), "tokens": text.ids, "tokens_length": text.lengths, "keys": None}
    (loss, _), gradients = this.run(Mlm(this.bert), batch, {})
    this.check_losses({"total_loss": loss, "encoder_mlm_loss": loss}, variant)
    this.check_gradients(gradients, variant)


@pytest.mark.parametrize(("case", "variant"), golden.case_variants("04c_"))
def test_cotmae_of_queries(case: Path, variant: str, precision: str) -> None:
    this = load(case, precision)
    flags = this.meta["variants"][variant]
    mlm, causal = flags["use_enc_head"], flags["use_dec_head"]
    decoder = {(True, False): "mlm", (False, True): "causal", (True, True): "both"}[mlm, causal]
    objective = CotMae(
        this.bert,
        decoder=decoder,
        mlm_layers=flags["n_enc_head_layers"],
        mlm_coefficient=flags["enc_head_mlm_coef"],
        causal_layers=flags["n_dec_head_layers"],
        causal_coefficient=flags["dec_head_coef"],
        window=flags["attn_window"],
        encoder_mlm=not flags["disable_bert_mlm_loss"],
        freeze=flags["freeze_bert"],
    )
    decoded: dict[str, Any] = {}
    if mlm:
        decoded["mlm"] = shared([masked_text(this.arrays, EVERY, "enc_head_")])
    if causal:
        lengths = golden.lengths(this.arrays["dec_head_attention_mask"])
        ids = jnp.asarray(this.arrays["dec_head_input_ids"])
        decoded["causal"] = cotmae.causal_texts([(ids, jnp.asarray(lengths))])
    batch = {
        "encoded": shared([masked_text(this.arrays, EVERY)]),
        "decoded": decoded,
        "keys": [None],
    }
    files = {"mlm": "c_head", "causal": "d_head"}
    names = {cotmae.HEADS[name]: files[name] for name in objective.decoders}
    (loss, aux), gradients = this.run(objective, batch, names)
    losses = {"total_loss": loss}
    if objective.encoder_mlm:
        losses["bert_mlm_loss"] = aux["encoder_mlm_loss"]
    if mlm:
        losses["enc_head_loss_unweighted"] = aux["mlm_decoder_loss"]
        losses["enc_head_mlm_loss"] = objective.mlm_coefficient * aux["mlm_decoder_loss"]
    if causal:
        losses["dec_head_loss_unweighted"] = aux["causal_decoder_loss"]
        losses["dec_head_casual_loss"] = objective.causal_coefficient * aux["causal_decoder_loss"]
    this.check_losses(losses, variant)
    this.check_gradients(gradients, variant)


def test_zero_vectors_know_nothing() -> None:
    nothing = jnp.zeros((6, 4))
    objective = CoCondenser(Bert(BertConfig(8, 4, 1, 1, 4, 6)), temperature=0.3)
    np.testing.assert_allclose(objective.contrast(nothing, nothing).loss, np.log(11), rtol=1e-6)
