"""Values of a wrong type or size in gin: one short sentence, whatever they break."""

from __future__ import annotations

import pytest

from qac_jax import config
from qac_jax.errors import UserError
from qac_jax.pipeline import recipe
from qac_jax.stages.train import Train


FILES = ["objectives/mlm.gin", "models/bert_tiny.gin"]
WRONG = [
    ("bert.BertConfig.activation=-1", "activation -1 is not known; valid names: gelu"),
    ("bert.BertConfig.hidden_size={}", "BertConfig cannot be made .*BertConfig.hidden_size = {}"),
    ("bert.BertConfig.num_heads=0", "BertConfig cannot be made"),
    ("masking.Masking.rate='x'", "Masking.rate = 'x'"),
    ("mlm.Mlm.model='x'", "expected"),
    ("mlm.Mlm.masking=[]", "expected Masking"),
]


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    config.apply(config.Settings())


@pytest.mark.parametrize(("binding", "sentence"), WRONG)
def test_wrong_values_are_named(binding, sentence):
    config.register([Train])
    with pytest.raises(UserError, match=sentence) as caught:
        config.apply(config.Settings(files=FILES, bindings=[binding]))
        config.build(Train).check()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500


@pytest.mark.parametrize("value", ["'x'", "True", "1e999"])
def test_an_optimizer_is_one_or_none(value):
    config.register([Train])
    config.apply(config.Settings(files=FILES, bindings=[f"Train.optimizer={value}"]))
    with pytest.raises(UserError, match=r"Train.optimizer = .* expected @optimizers.Optimizer"):
        config.build(Train, check=False)._optimizer()


@pytest.mark.parametrize(
    "text",
    [
        "A = %A\nrecipe.Recipe.title = %A\n",
        "A = %B\nB = %A\nrecipe.Recipe.title = %A\n",
        "recipe.Recipe.title = " + "[" * 3000 + "]" * 3000 + "\n",
        "include 'r.gin'\n",
        "recipe.Recipe.title = '" + "a" * 1_000_000 + "'\nrecipe.Recipe.stages = 3\n",
    ],
    ids=["itself", "circle", "deep", "include", "long"],
)
def test_files_without_an_end(text, tmp_path):
    """Fault 10, and a hang: each of these is refused within seconds."""
    file = tmp_path / "r.gin"
    head = "from __gin__ import dynamic_registration\nfrom qac_jax.pipeline import recipe\n"
    file.write_text(head + text)
    config.register([recipe.Recipe])
    with pytest.raises(UserError) as caught:
        config.apply(config.Settings(files=[str(file)], search_paths=[str(tmp_path)]))
        recipe.ordered(config.build(recipe.Recipe))
    assert len(str(caught.value)) < 2000
