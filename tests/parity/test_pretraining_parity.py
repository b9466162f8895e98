"""Golden cases 02, 03, 03c, 04 and 04c: states of the heads, losses of the objectives, gradients.

The masks come from the cases, so prepared batches are made here; what `prepare` adds (weights,
targets) is made with its own functions.
"""

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
from qac_jax.models.attention import causal_window
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives import cotmae
from qac_jax.objectives.cocondenser import CoCondenser
from qac_jax.objectives.condenser import HEAD, Condenser
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.mlm import MaskedText, Mlm, normalised


precision = golden.precision


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
        self.heads = huggingface.load_heads(place, self.bert.config, runtime)
        self.params = variables["params"]

    def run(self, objective: Any, batch: Any, names: Mapping[str, str]) -> Any:
        """((loss, scalars), gradients by the reference's names); names: our head -> the file's."""
        params = {**self.params, **{ours: self.heads[f][1]["params"] for ours, f in names.items()}}
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

    def compare(
        self,
        variant: str,
        objective: Any,
        batch: Any,
        heads: Mapping[str, str],
        losses: Mapping[str, Any],
        factor: float = 1.0,
    ) -> Any:
        """All gradients, and losses: the reference's name -> ours, or (coefficient, ours)."""
        (loss, aux), gradients = self.run(objective, batch, heads)
        found = {**aux, "loss": loss}
        for name, ours in losses.items():
            scale, ours = ours if isinstance(ours, tuple) else (1.0, ours)
            what = f"{variant}__{name}"
            value = scale * found[ours]
            golden.assert_loss(value, self.expect(what), self.precision, factor=factor, what=what)
        self.check_gradients(gradients, variant, factor)
        return aux

    def check_gradients(self, trees: Any, variant: str, factor: float = 1.0) -> None:
        norms = self.meta["grad_norms_f64"][variant]
        prefix = f"{variant}__grad__"
        hf_bert.check_gradients(trees, self.arrays, norms, prefix, self.precision, factor)
        # Parameters that the reference gives no gradient have none here.
        theirs = sum(norm**2 for norm in norms.values()) ** 0.5
        ours = sum(float(np.square(x).sum()) for x in jax.tree.leaves(trees)) ** 0.5
        assert abs(ours - theirs) <= 1e-4 * factor * max(*norms.values(), theirs)

    # Hidden states, each compared with the arrays of its name.

    def bert_of(self, method: str | None, *inputs: Any, **options: Any) -> Any:
        run = jax.jit(functools.partial(self.bert.apply, method=method, **options))
        return run(golden.in_precision({"params": self.params}, self.precision), *inputs)

    def encode(self, **options: Any) -> Any:
        """BERT's states, whose vectors are the case's."""
        lengths = golden.lengths(self.arrays["attention_mask"])
        out = self.bert_of(None, self.arrays["input_ids"], lengths, **options)
        if "cls" in self.arrays:
            self.check("cls", out.cls)
        return out

    def decode(self, file: str, cls: Any, prefix: str, **changes: Any) -> jax.Array:
        """The states of a head over its own texts."""
        embedded = self.bert_of("embed", self.arrays[f"{prefix}input_ids"])
        return self.head(
            file, cls, embedded, golden.lengths(self.arrays[f"{prefix}attention_mask"]), **changes
        )

    def head(self, file: str, *inputs: Any, **changes: Any) -> jax.Array:
        module, variables = self.heads[file]
        run = jax.jit(module.clone(**changes).apply)
        return run(golden.in_precision(variables, self.precision), *inputs)

    def check(self, name: str, actual: Any) -> None:
        golden.assert_activation(actual, self.expect(name), self.precision, what=name)


@functools.cache
def load(case: Path, precision: str) -> Case:
    return Case(case, precision)


@golden.each_variant("02_", slow=("late0", "late1"))
def test_condenser(case: Path, variant: str, precision: str) -> None:
    this = load(case, precision)
    flags = this.meta["variants"][variant]
    objective = Condenser(
        this.bert,
        head_layers=flags["n_head_layers"],
        skip_from=flags["skip_from"],
        late_mlm=flags["late_mlm"],
    )
    batch = {"text": normalised([masked_text(this.arrays, EVERY)])[0], "keys": None}
    losses = {"total_loss": "loss", "head_mlm_loss": "head_mlm_loss"}
    if flags["late_mlm"]:
        losses["backbone_mlm_loss"] = "late_mlm_loss"
    this.compare(variant, objective, batch, {HEAD: "c_head"}, losses)


def pairs(arrays: Mapping[str, np.ndarray], group: int = 0) -> Any:
    """Rows 2i and 2i + 1 as passage and context."""
    texts = normalised([masked_text(arrays, FIRST), masked_text(arrays, SECOND)], group)
    names = ("passage", "context")
    return {**dict(zip(names, texts, strict=True)), "keys": dict.fromkeys(names)}


@pytest.mark.slow
@golden.each_variant("03_")
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
    losses = {"total_loss": "loss", "contrastive_loss": "contrastive_loss"}
    losses["head_mlm_loss"] = "head_mlm_loss"
    if late:
        losses["backbone_mlm_loss"] = "late_mlm_loss"
    if cached:
        losses = {"reported_total_loss": "loss"}
    batch = pairs(this.arrays, group)
    aux = this.compare(variant, objective, batch, {HEAD: "c_head"}, losses)
    if cached:
        # Of the parts only the sum over chunks is stored: each chunk's MLM, scaled as it enters.
        mlm = 2 * (aux["head_mlm_loss"] + (aux["late_mlm_loss"] if late else 0))
        total = float(np.sum(this.expect(f"{variant}__chunk_lm_losses")))
        scale = group / flags["per_device_train_batch_size"]
        assert any(abs(mlm - x) <= 1e-5 * abs(x) for x in (total, scale * total)), (mlm, total)


@golden.each_case("03_", slow=("float32",))
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


@pytest.mark.slow
@golden.each_variant("03c_")
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
    losses: dict[str, Any] = {"total_loss": "loss", "head_mlm_loss": "head_mlm_loss"}
    losses["clloss"] = (objective.coefficient, "contrastive_loss")
    if flags["late_mlm"]:
        losses["bert_mlm_loss"] = "late_mlm_loss"
    this.compare(variant, objective, pairs(this.arrays), {HEAD: "c_head"}, losses, factor)


@golden.each_variant("04_", slow=("full",))
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
    encoded = normalised([masked_text(this.arrays, rows) for rows in (FIRST, SECOND)])
    decoded = normalised([masked_text(this.arrays, rows, "decoder_") for rows in (FIRST, SECOND)])
    batch = {"encoded": encoded, "decoded": {"mlm": decoded}, "keys": [None, None]}
    losses = {
        "total_loss": "loss",
        "encoder_mlm_loss": "encoder_mlm_loss",
        "head_mlm_loss_logged": (flags["head_mlm_coef"], "mlm_decoder_loss"),
    }
    aux = this.compare(variant, objective, batch, {cotmae.HEADS["mlm"]: "c_head"}, losses)
    unweighted = this.expect("decoder_mlm_loss_unweighted")
    golden.assert_loss(aux["mlm_decoder_loss"], unweighted, precision)


def check_cotmae_without_its_decoder(this: Case, variant: str) -> None:
    """Then it is masked language modelling."""
    text = normalised([masked_text(this.arrays, EVERY)])[0]
    batch = {"text": text, "keys": None}
    losses = dict.fromkeys(("total_loss", "encoder_mlm_loss"), "loss")
    this.compare(variant, Mlm(this.bert), batch, {}, losses)


@pytest.mark.slow
@golden.each_variant("04c_")
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
        decoded["mlm"] = normalised([masked_text(this.arrays, EVERY, "enc_head_")])
    if causal:
        lengths = golden.lengths(this.arrays["dec_head_attention_mask"])
        ids = jnp.asarray(this.arrays["dec_head_input_ids"])
        decoded["causal"] = cotmae.causal_texts([(ids, jnp.asarray(lengths))])
    encoded = normalised([masked_text(this.arrays, EVERY)])
    batch = {"encoded": encoded, "decoded": decoded, "keys": [None]}
    files = {"mlm": "c_head", "causal": "d_head"}
    names = {cotmae.HEADS[name]: files[name] for name in cotmae.DECODERS[objective.decoder]}
    losses: dict[str, Any] = {"total_loss": "loss"}
    if objective.encoder_mlm:
        losses["bert_mlm_loss"] = "encoder_mlm_loss"
    if mlm:
        losses["enc_head_loss_unweighted"] = "mlm_decoder_loss"
        losses["enc_head_mlm_loss"] = (objective.mlm_coefficient, "mlm_decoder_loss")
    if causal:
        losses["dec_head_loss_unweighted"] = "causal_decoder_loss"
        losses["dec_head_casual_loss"] = (objective.causal_coefficient, "causal_decoder_loss")
    this.compare(variant, objective, batch, names, losses)


@pytest.mark.slow
@golden.each_case("02_")
def test_states_of_condenser(case: Path, precision: str) -> None:
    this = load(case, precision)
    lengths = golden.lengths(this.arrays["attention_mask"])
    for variant, flags in golden.variants(case).items():
        skip = flags["skip_from"]
        assert flags["n_head_layers"] == this.heads["c_head"][0].num_layers
        out = this.encode(hidden_states=(skip,))
        hidden = this.head("c_head", out.cls, out.hidden_states[skip], lengths)
        this.check(f"{variant}__head_hidden", hidden)


@golden.each_case("03_", "03c_")
def test_vectors_of_cocondenser(case: Path, precision: str) -> None:
    this = load(case, precision)
    cls = this.encode(rows=1).cls
    names = [name for name in golden.names(this.arrays) if name.startswith("similarity")]
    assert names
    for name in names:
        this.check(name, cls @ cls.T)


@golden.each_case("04_")
def test_states_of_cotmae(case: Path, precision: str) -> None:
    this = load(case, precision)
    out = this.encode()
    this.check("encoder_logits", this.bert_of("mlm_logits", out.last))
    this.check("decoder_hidden", this.decode("c_head", out.cls, "decoder_"))


@pytest.mark.slow
@golden.each_case("04c_")
def test_states_of_cotmae_of_queries(case: Path, precision: str) -> None:
    this = load(case, precision)
    cls = this.encode(rows=1).cls
    for variant, flags in golden.variants(case).items():
        computed: dict[str, Any] = {}
        if flags["use_dec_head"]:
            hidden = this.decode("d_head", cls, "dec_head_", window=flags["attn_window"])
            computed |= {"dec_hidden": hidden, "dec_logits": this.bert_of("mlm_logits", hidden)}
        if flags["use_enc_head"]:
            computed["enc_hidden"] = this.decode("c_head", cls, "enc_head_")
        stored = golden.names(this.arrays, f"{variant}__")
        for name in (name for name in stored if name.endswith(("_hidden", "_logits"))):
            this.check(f"{variant}__{name}", computed[name])


@pytest.mark.parametrize("case", golden.parameters("04c_"))
def test_attention_window(case: Path) -> None:
    """The matrices of who sees whom, for every window and number of padded keys stored."""
    meta, arrays = golden.load(case)
    windows = {flags["attn_window"] for flags in meta["variants"].values()}
    compared = 0
    for window in windows:
        label = "full" if window == -1 else f"w{window}"
        for name in golden.names(arrays, "attn_bool_"):
            size, kind, *padding = name.split("_")
            if kind != label:
                continue
            length = int(size.removeprefix("len"))
            padded = int(padding[0].removeprefix("pad")) if padding else 0
            seen = np.array(causal_window(length, window))
            seen &= np.arange(length) < length - padded
            np.testing.assert_array_equal(seen, arrays[f"attn_bool_{name}"].astype(bool), name)
            compared += 1
    assert compared == len(list(golden.names(arrays, "attn_bool_")))


@golden.each_case("04c_")
def test_receptive_field(case: Path, precision: str) -> None:
    """Output i of a one-layer decoder has a gradient exactly for the inputs it may see."""
    this = load(case, precision)
    module, variables = this.heads["d_head"]
    variables = golden.in_precision(variables, precision)
    window = max(flags["attn_window"] for flags in this.meta["variants"].values())
    decoder = module.clone(num_layers=1, window=window)
    embedded = this.bert_of("embed", this.arrays["dec_head_input_ids"])[:1]

    def outputs(cls: jax.Array, rest: jax.Array) -> jax.Array:
        return decoder.apply(variables, cls, rest)[0]

    to_cls, to_rest = jax.jit(jax.jacrev(outputs, (0, 1)))(embedded[:, 0], embedded)
    length = embedded.shape[1]
    norms = np.array(jnp.square(to_rest[:, :, 0]).sum((1, 3)))
    norms[:, 0] = jnp.square(to_cls[:, :, 0]).sum((1, 2))
    np.testing.assert_array_equal(norms > 0, causal_window(length, window))


def test_zero_vectors_know_nothing() -> None:
    nothing = jnp.zeros((6, 4))
    objective = CoCondenser(Bert(BertConfig(8, 4, 1, 1, 4, 6)), temperature=0.3)
    np.testing.assert_allclose(objective.contrast(nothing, nothing).loss, np.log(11), rtol=1e-6)
