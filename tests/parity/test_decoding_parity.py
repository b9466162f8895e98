"""Decoding against the reference: greedy and beam ids, kept sets, the law of sampling."""

import functools
import re
from pathlib import Path
from typing import Any

import golden_cases as golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import huggingface
from qac_jax.models.decoding.sampling import Decoded, draw, kept, row_keys
from qac_jax.models.decoding.settings import Decoding, Sampling
from qac_jax.models.decoding.slots import decode
from qac_jax.models.layers import Runtime


SLOW = pytest.mark.slow
FILTERS = golden.parameters("08c_")
_NUMBERS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "num_beams": "beams",
    "length_penalty": "length_penalty",
}


def generations() -> list[Any]:
    """Every case with every way of generating that it lists; in float32 one of a sort, quickly."""
    found = []
    for prefix in ("08a_", "08b_"):
        assert golden.cases(prefix), f"no case {prefix}"
        for case in golden.cases(prefix):
            for name in golden.load(case)[0]["generation"]:
                label = f"{case.name}-{name}"
                found.append(pytest.param(case, name, "float64", id=label, marks=SLOW))
                if prefix == "08a_" and re.fullmatch(r"greedy\d+|.*early.*", name):
                    found.append(pytest.param(case, name, "float32", id=f"{label}-float32"))
    return found


def settings_of(case: Path, name: str) -> Decoding:
    """What case.json says about a way of generating; variants say what they change."""
    table = golden.load(case)[0]["generation"]
    base = re.match(r"(greedy|beam)\d+", name)
    assert base, f"{name} is neither greedy nor beam search"
    said = " ".join({table[base[0]]: None, table[name]: None})
    numbers: dict[str, Any] = {"samples": 1}
    for theirs, ours in _NUMBERS.items():
        values = re.findall(rf"{theirs}=([-\d.]+)", said)
        if values:
            numbers[ours] = float(values[-1].rstrip(".")) if "penalty" in ours else int(values[-1])
    early = re.findall(r"early_stopping=(\w+)", said)
    if early:
        numbers["early_stopping"] = {"True": "yes", "False": "no"}.get(early[-1], "never")
    if base[1] == "beam":
        numbers["samples"] = numbers["beams"]
    if "max_tokens" not in numbers:
        numbers["max_tokens"] = int(re.findall(r"\d+", base[0])[0])
    return Decoding(method=base[1], **numbers)


def decoded(case: Path, name: str, precision: str) -> Decoded:
    _, arrays = golden.load(case)
    settings = settings_of(case, name)
    with golden.precision_context(precision):
        module, variables = huggingface.load(case / "model", Runtime(dtype=precision, scan=True))
        variables = jax.tree.map(lambda x: x.astype(precision), variables)
        run = jax.jit(functools.partial(decode, module, settings=settings))
        ids = arrays["input_ids"].astype(np.int32)
        found = run(variables, ids, golden.lengths(arrays["attention_mask"]))
        return jax.device_get(found)


@pytest.mark.parametrize(("case", "name", "precision"), generations())
def test_ids_are_the_references(case: Path, name: str, precision: str) -> None:
    _, arrays = golden.load(case)
    found = decoded(case, name, precision)
    texts, samples, _ = found.tokens.shape
    expected = arrays[f"{name}_sequences"].reshape(texts, samples, -1)[..., 1:]
    for text in range(texts):
        for sample in range(samples):
            length = int(found.lengths[text, sample])
            ours, theirs = found.tokens[text, sample], expected[text, sample]
            np.testing.assert_array_equal(ours[:length], theirs[:length])
            # Behind the end the reference has padding, or (beams) the end token again.
            assert set(theirs[length:]) <= {0, 1} and not ours[length:].any()
    if f"{name}_scores" in arrays:
        reference = golden.expected(arrays, f"{name}_scores", precision)
        np.testing.assert_allclose(found.scores, reference, rtol=2e-5, atol=2e-5)


def filters(case: Path) -> dict[str, Sampling]:
    """Kept set of the case -> the settings that its name speaks of."""
    meta, arrays = golden.load(case)
    flags, found = meta["flags"], {}
    for name in golden.names(arrays, "kept_"):
        temperature = re.search(r"temp(\d+)", name)
        found[name] = Sampling(
            temperature=float(f"{temperature[1][0]}.{temperature[1][1:]}") if temperature else 1.0,
            top_k=flags["top_k"] if "topk" in name else 0,
            top_p=flags["top_p"] if "topp" in name else 1.0,
        )
    assert found, "the case lists no kept sets"
    return found


@pytest.mark.parametrize("case", FILTERS)
def test_kept_sets(case: Path) -> None:
    _, arrays = golden.load(case)
    for name, sampling in filters(case).items():
        scaled = jnp.asarray(arrays["logits"], jnp.float32) / sampling.temperature
        np.testing.assert_array_equal(kept(scaled, sampling), arrays[f"kept_{name}"], name)
        if f"probs_{name}" in arrays:
            probabilities = jax.nn.softmax(jnp.where(kept(scaled, sampling), scaled, -jnp.inf))
            np.testing.assert_allclose(probabilities, arrays[f"probs_{name}"], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", FILTERS)
def test_draws_follow_the_filtered_distribution(case: Path) -> None:
    """Chi-square of 20,000 draws a row; nothing outside of the kept set is ever drawn."""
    from scipy import stats

    _, arrays = golden.load(case)
    logits, draws = jnp.asarray(arrays["logits"]), 20_000
    words = np.random.default_rng(0).integers(0, 2**32, (1, 2), dtype=np.uint32)
    keys = row_keys(jnp.asarray(words), draws)
    for name, sampling in filters(case).items():
        if f"probs_{name}" not in arrays:
            continue
        run = jax.jit(
            lambda row, s=sampling: draw(jnp.tile(row, (draws, 1)), keys, jnp.int32(3), s)
        )
        for row, law in zip(logits, arrays[f"probs_{name}__f64"], strict=True):
            counts = np.bincount(run(row), minlength=len(law))
            assert not counts[law == 0].any()
            # Rare tokens together, so that every cell expects enough.
            often = law * draws >= 5
            seen = np.append(counts[often], counts[~often].sum())
            expected = np.append(law[often], law[~often].sum()) * draws
            cells = expected > 0
            if cells.sum() > 1:
                total = expected[cells].sum()
                p = stats.chisquare(seen[cells], expected[cells] * draws / total).pvalue
                assert p > 1e-4, f"{name}: p = {p}"
