"""Gin at the door: precedence, and one sentence for every mistake."""

from __future__ import annotations

import dataclasses
import sys
import types

import gin
import pytest
import toy_stages

import qac_jax
from qac_jax import config
from qac_jax.errors import UserError
from qac_jax.pipeline import recipe


HEAD = "from __gin__ import dynamic_registration\nimport toy_stages\n"


@pytest.fixture
def gin_file(tmp_path):
    def write(text: str, name: str = "my.gin") -> str:
        path = tmp_path / name
        path.write_text(HEAD + text)
        return str(path)

    return write


def build(**settings):
    config.register([toy_stages.Numbers])
    config.apply(config.Settings(**settings))
    return config.build(toy_stages.Numbers)


def test_a_flag_beats_a_binding_which_beats_a_file(gin_file):
    file = gin_file("toy_stages.Numbers.count = 1\ntoy_stages.Numbers.word = 'm'\n")
    assert build(files=[file]).count == 1
    assert build(files=[file], bindings=["Numbers.count=2"]).count == 2
    stage = build(files=[file], bindings=["Numbers.count=2"], flags={"Numbers.count": 3})
    assert (stage.count, stage.word) == (3, "m")
    assert build().count == 10, "nothing is left over from the call before"


def test_search_paths_and_includes(gin_file, tmp_path):
    gin_file("toy_stages.Numbers.count = 7\n", "base.gin")
    top = gin_file("include 'base.gin'\n", "top.gin")
    assert build(files=[top], search_paths=[str(tmp_path)]).count == 7
    assert build(files=["base.gin"], search_paths=[str(tmp_path)]).count == 7


def test_search_paths_of_one_call_are_not_those_of_the_next(gin_file, tmp_path):
    gin_file("toy_stages.Numbers.count = 7\n", "base.gin")
    assert build(files=["base.gin"], search_paths=[str(tmp_path)]).count == 7
    with pytest.raises(UserError, match="base.gin does not exist"):
        build(files=["base.gin"])
    before = len(gin.config._LOCATION_PREFIXES)
    build()
    assert len(gin.config._LOCATION_PREFIXES) == before


def test_a_part_is_bound_once_for_all_stages_or_in_a_scope(gin_file):
    file = gin_file(
        "from qac_jax.pipeline import recipe\n"
        "recipe.Recipe.stages = {'a': @a/toy_stages.Sized(), 'b': @b/toy_stages.Sized()}\n"
        "toy_stages.Sizes.width = 5\n"
        "b/toy_stages.Sizes.depth = 6\n"
    )
    config.register([recipe.Recipe])
    config.apply(config.Settings(files=[file], flags={"toy_stages.Sizes.width": 7}))
    stages = config.build(recipe.Recipe).stages
    assert stages["a"].sizes == toy_stages.Sizes(7, 4)
    assert stages["b"].sizes == toy_stages.Sizes(7, 6)
    config.apply(config.Settings())
    assert toy_stages.Sized().sizes == toy_stages.Sizes(3, 4), "nothing is left over"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "toy_stages.Numbers.cuont = 1\n",
            r"no parameter 'cuont' .*my.gin:3.; did you mean 'count'",
        ),
        (
            "toy_stages.Nubmers.count = 1\n",
            r"unknown name 'toy_stages.Nubmers'.*did you mean 'Numbers'",
        ),
        ("toy_stages.Numbers.are.count = 1\n", r"unknown name 'toy_stages.Numbers.are'.*:3."),
        ("toy_stage.Numbers.count = 1\n", r"'toy_stage' is not imported .*my.gin:3"),
        ("import no_such_module\n", r"No module named 'no_such_module' .*my.gin:3"),
        ("toy_stages.Numbers.count 1\n", r"not valid gin: .*line 3"),
        ("toy_stages.Numbers.count = [1\n", r"not valid gin"),
        ("toy_stages.Numbers.count = what(3)\n", r"not valid gin"),
        ("toy_stages.Numbers.count = %SIZE\n", r"macro %SIZE has no value; pass --gin.SIZE=VALUE"),
        (
            "toy_stages.Numbers.count = %gin.REQUIRED\n",
            r"Numbers.count is not set .how many.; pass --count",
        ),
        ("SIZE = %gin.REQUIRED\ntoy_stages.Numbers.count = %SIZE\n", r"Numbers.count is not set"),
        ("toy_stages.Numbers.count = '3'\n", r"Numbers.count = '3' is a str; expected int"),
        ("toy_stages.Numbers.word = 'o'\n", r"Numbers.word = 'o' is not one of n, m"),
        ("include 'absent.gin'\n", r"[Uu]nable to open file: absent.gin.*--gin_search_paths"),
    ],
)
def test_mistakes_in_a_file(gin_file, text, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        build(files=[gin_file(text)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("binding", "sentence"),
    [
        (
            "Numbers.shard=1",
            r"--gin.Numbers.shard=1: .* no parameter 'shard'; did you mean 'shards'",
        ),
        ("Number.shards=1", r"unknown name 'Number'; did you mean 'Numbers'"),
        ("Numbers.shards", r"has no value; write --gin.NAME=VALUE"),
        ("Numbers.shards=", r"not valid gin"),
    ],
)
def test_mistakes_in_a_binding(binding, sentence):
    with pytest.raises(UserError, match=sentence):
        build(bindings=[binding])


def test_files_that_are_absent_or_no_text(tmp_path):
    (tmp_path / "near.gin").write_text("")
    with pytest.raises(
        UserError, match="gin file naer.gin does not exist; did you mean 'near.gin'"
    ):
        build(files=["naer.gin"], search_paths=[str(tmp_path)])
    (tmp_path / "noise.gin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read .*expected a gin file in UTF-8"):
        build(files=[str(tmp_path / "noise.gin")])


def test_the_text_in_force_is_kept(gin_file):
    build(files=[gin_file("toy_stages.Numbers.count = 4\n")], bindings=["Numbers.shards=3"])
    assert "Numbers.count = 4" in config.text() and "Numbers.shards = 3" in config.text()


def test_a_required_macro_without_a_value_is_named(gin_file):
    file = gin_file("WORD = %gin.REQUIRED\ntoy_stages.Numbers.word = %WORD\n")
    with pytest.raises(UserError, match="macro %WORD has no value; pass --gin.WORD=VALUE"):
        build(files=[file])
    assert build(files=[file], bindings=["WORD = 'm'"]).word == "m"


@pytest.mark.parametrize("first", ["stage", "file"])
def test_a_part_answers_to_the_module_that_a_file_names_it_by(tmp_path, monkeypatch, first):
    """Whatever this process has read before: a notebook runs a recipe, then a stage, a recipe."""
    cls = dataclasses.make_dataclass("Length", [("steps", int, 1), ("size", int, 1)])
    for name in (f"home_{first}", f"user_{first}"):  # the second imports it from the first
        module = types.ModuleType(f"qac_jax.{name}")
        vars(module)["Length"] = cls
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(qac_jax, name, module, raising=False)
    cls.__module__ = f"qac_jax.home_{first}"
    file = tmp_path / "my.gin"
    file.write_text(
        f"from __gin__ import dynamic_registration\nfrom qac_jax import user_{first}\n"
        f"user_{first}.Length.steps = 5\n"
    )
    settings = config.Settings([str(file)], bindings=[f"user_{first}.Length.size=7"])
    if first == "file":
        config.apply(settings)
    config.register([cls])
    for _ in range(2):
        config.apply(settings)
        made = gin.get_configurable(cls)()
        assert (made.steps, made.size) == (5, 7)
        assert not config.unused()
