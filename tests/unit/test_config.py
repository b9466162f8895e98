"""Gin: precedence, bindings, a sentence for every mistake; what files of models build."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import pytest
import toy_stages
from flax import traverse_util

from qac_jax import cli, config
from qac_jax.errors import UserError
from qac_jax.hub import backbones, parameters
from qac_jax.models import backbone
from qac_jax.models.backbone import Architecture
from qac_jax.models.layers import Runtime
from qac_jax.pipeline import recipe
from qac_jax.pipeline.recipe import Run
from qac_jax.stages.train import Train


HEAD = "from __gin__ import dynamic_registration\nimport toy_stages\n"
MINE = ["toy_stages"]


def toy(run: Run, width: int, factor: int = 2, word: str = "n") -> None:
    """A recipe of three stages."""
    first = run(toy_stages.Numbers, "first", count=3, word=word)
    run(toy_stages.Doubled, "twice", numbers=first, factor=factor)
    run(toy_stages.Sized, "sized", width=width)


@pytest.fixture
def gin_file(tmp_path: Path) -> Any:
    def write(text: str, name: str = "my.gin", head: str = HEAD) -> str:
        path = tmp_path / name
        path.write_text(head + text)
        return str(path)

    return write


def build(*bindings: str, **settings: Any) -> Any:
    return config.Config(bindings=bindings, modules=MINE, **settings).build(toy_stages.Numbers)


def test_a_flag_beats_a_binding_which_beats_a_file(gin_file: Any) -> None:
    file = gin_file("toy_stages.Numbers.count = 1\ntoy_stages.Numbers.word = 'm'\n")
    assert build(files=[file]).count == 1
    assert build("toy_stages.Numbers.count=2", files=[file]).count == 2
    flags = {"toy_stages.Numbers.count": 3}
    stage = build("toy_stages.Numbers.count=2", files=[file], flags=flags)
    assert (stage.count, stage.word) == (3, "m")
    assert build().count == 10


def test_search_paths_includes_and_macros(gin_file: Any, tmp_path: Path) -> None:
    file = gin_file("N = %gin.REQUIRED\ntoy_stages.Numbers.count = %N\n", "base.gin")
    top = gin_file("include 'base.gin'\nN = 7\n", "top.gin")
    assert build(files=[top], search_paths=[str(tmp_path)]).count == 7
    with pytest.raises(UserError, match="macro %N has no value; pass --gin.N=VALUE"):
        build(files=["base.gin"], search_paths=[str(tmp_path)])
    assert build("N=5", "toy_stages.Numbers.word=m", files=[file]).word == "m"  # without quotes


def test_a_mistake_is_one_sentence(gin_file: Any, tmp_path: Path) -> None:
    for text, sentence in (
        ("toy_stages.Numbers.cuont = 1\n", r"no parameter 'cuont'.*mean 'count'.*my.gin:3"),
        ("toy_stages.Nubmers.count = 1\n", r"unknown name 'toy_stages.Nubmers'.*'Numbers'"),
        ("toy_stages.Numbers.count = 'x'\n", r"count = 'x' is a str; expected int"),
        ("prepare.Prepare.seed =\n", r"not valid gin.*my.gin:3"),
        ("include 'my.gin'\n", "includes itself"),
        ("from qac_jax.stages import prepaer\n", r"prepaer.*spelling.*my.gin:3"),
    ):
        with pytest.raises(UserError, match=sentence) as caught:
            build(files=[gin_file(text)], search_paths=[str(tmp_path)])
        assert "\n" not in str(caught.value)


# A gin file from a stranger names settings, and nothing else.
TRICKS = {
    "a program": "import subprocess\nsubprocess.Popen.args = ['touch', '{mark}']\n"
    "A = @subprocess.Popen()\n",
    "a function of os": "import os\nos.mkdir.path = '{mark}'\nA = @os.mkdir()\n",
    "not imported": "A = @os.getcwd()\n",
    "a module beside the recipe": "import evil_module\n",
    "from … import": "from evil_module import thing\n",
    "a renamed module": "import evil_module as recipe2\n",
    "a module that ours imports": "from qac_jax.artifacts import writing\n"
    "A = @writing.os.mkdir()\n",
    "a function of ours": "from qac_jax import artifacts\nA = @artifacts.remove()\n",
    "a method of ours": "from qac_jax.pipeline import stage\nA = @stage.Stage.make()\n",
    "a class of ours that acts": "from qac_jax.artifacts import writing\nA = @writing.Writer()\n",
    "a recipe that is none": "recipe = @qac.functions()\n",
    "an expression": "A = __import__('os').mkdir('{mark}')\n",
    "an included file": "include 'tricks.gin'\n",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_gin_runs_no_programs(
    trick: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "evil_module.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (tmp_path / "tricks.gin").write_text(TRICKS["a program"].format(mark=mark))
    file = tmp_path / "r.gin"
    file.write_text(TRICKS[trick].format(mark=mark))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    stage = ["prepare", "--format=folder", "--documents=.", "--dry_run", "--gin_file", "r.gin"]
    for words in (["plan", str(file)], stage):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("qac: ") and said.count("\n") == 1 and ".gin:" in said
        assert not mark.exists()


def test_the_user_allows_packages(gin_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(config.VARIABLE, raising=False)
    file = gin_file("toy_stages.Numbers.count = 4\n")
    with pytest.raises(UserError, match="'toy_stages' is not imported.*--gin_modules toy_stages"):
        config.Config(files=[file])
    assert build(files=[file]).count == 4
    file = gin_file("toy_stages.json.dumps.obj = 1\n")
    with pytest.raises(UserError, match="unknown name|not imported|--gin_modules"):
        build(files=[file])


def made(gin_file: Any, text: str, *bindings: str, **settings: Any) -> Any:
    """The configuration and the stages of the toy recipe with this text."""
    head = "import test_config\nimport toy_stages\nrecipe = @test_config.toy()\n"
    file = gin_file(text, "recipe.gin", head)
    allowed = ["toy_stages", "test_config"]
    given = config.Config(file, bindings=bindings, modules=allowed, **settings)
    return given, recipe.ordered(given.recipe())


def test_parameters_and_stages_of_a_recipe_are_bound(gin_file: Any) -> None:
    """A binding counts instead of what the recipe gives; what it wires stays."""
    text = (
        "test_config.toy.width = 9\n"
        "toy_stages.Numbers.count = 4\n"
        "twice/toy_stages.Doubled.factor = 5\n"
    )
    _, stages = made(gin_file, text)
    assert (stages["first"].count, stages["twice"].factor) == (4, 5)
    assert stages["twice"].numbers == "stage:first"
    assert stages["sized"].sizes == toy_stages.Sizes(9, 4)
    given, stages = made(gin_file, text, "WORD=m", "first/toy_stages.Numbers.count=6")
    assert (stages["first"].count, stages["first"].word) == (6, "m")
    assert not given.unused()
    _, stages = made(gin_file, text, "toy/first/toy_stages.Numbers.count=7")
    assert stages["first"].count == 7  # of this recipe alone
    with pytest.raises(UserError, match="toy.width is not set; pass --width"):
        made(gin_file, "")


def test_what_is_not_used_is_refused(gin_file: Any) -> None:
    given, _ = made(gin_file, "WIDTH = 9\n", "frist/toy_stages.Numbers.count=3")
    (said,) = given.unused().values()
    assert "--gin.frist/toy_stages.Numbers.count changes nothing" in said
    overlay = gin_file("twice/toy_stages.Doubled.factor = 3\nFACTR = 3\n", "overlay.gin")
    given, stages = made(gin_file, "WIDTH = 9\n", overlays=[overlay])
    assert stages["twice"].factor == 3
    assert "overlay.gin: FACTR changes nothing" in next(iter(given.unused().values()))


def test_recipes_write_inside_of_out_only() -> None:
    stage = toy_stages.Numbers()
    for name in ("../up", "/tmp/x", ".hidden", "a/b"):
        with pytest.raises(UserError, match="cannot be the name of a folder"):
            recipe.ordered(recipe.Recipe(stages={name: stage}))
        with pytest.raises(UserError, match="cannot be the name of a folder"):
            recipe.ordered(recipe.Recipe(stages={"a": stage}, published={name: "stage:a/x"}))


GIN = Path(__file__).parents[2] / "gin_configs"
# The objective and the number of parameters by the layers, widths, heads and pieces of their
# papers (Turc et al. 2019, Devlin et al. 2019, Liu et al. 2019, Sanh et al. 2019, Song et al. 2020,
# Raffel et al. 2020, Warner et al. 2024; the small ones have our 16,384 pieces): encoders with
# their masked-language-model head, but for T5's, which has none. Without the head they are what
# their authors' folders hold, such as 149,014,272 of ModernBERT and 66,362,880 of DistilBERT.
SIZES = {
    "bert_tiny": ("mlm", 2_592_896),
    "bert_mini": ("mlm", 7_568_128),
    "bert_small": ("mlm", 21_542_400),
    "bert_base": ("mlm", 109_514_298),
    "roberta_base": ("mlm", 124_697_433),
    "xlm_roberta_base": ("mlm", 278_295_186),
    "distilbert_base": ("mlm", 66_985_530),
    "electra_base": ("mlm", 109_514_298),
    "mpnet_base": ("mlm", 109_518_527),
    "modernbert_base": ("mlm", 149_655_232),
    "t5_micro": ("seq2seq", 6_713_280),
    "t5_tiny": ("seq2seq", 11_572_992),
    "t5_small": ("seq2seq", 60_506_624),
    "t5_base": ("seq2seq", 222_903_552),
    "t5_encoder_base": ("finetune", 109_628_544),
    "pointer_minilm": ("seq2seq_pointer", 28_352_827),
}


def built(*files: str) -> Train:
    train = config.Config(files=files).build(Train, check=False)
    assert isinstance(train, Train)
    return train


@pytest.mark.slow
def test_every_model_has_its_papers_size() -> None:
    assert SIZES.keys() == {path.stem for path in (GIN / "models").glob("*.gin")}
    for model, (objective, size) in SIZES.items():
        train = built(f"objectives/{objective}.gin", f"models/{model}.gin")
        shapes = jax.eval_shape(train.objective.init, jax.random.key(0))
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == size, model


def test_every_architecture_is_whole() -> None:
    for name, cls in backbone.registered().items():
        made = cls()
        assert cls.__name__ == name and cls.model_types and cls.display_name
        module = made.build(Runtime())
        assert backbone.of_module(module) == made
        raw = json.loads(json.dumps(made.to_hf()))
        assert backbones.architecture_of(raw, Path("x"), Architecture) is cls
        small = cls(num_layers=1)  # type: ignore[call-arg]
        params = backbones.new_parameters(small.build(Runtime()), abstract=True)
        assert traverse_util.flatten_dict(params, sep="/").keys() == small.table().keys()
        record = json.loads(json.dumps(parameters.describe_module(module)))
        assert parameters.build_module(record, Runtime()) == module
