"""A gin file from a stranger cannot run a program: it names settings, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_stages

from qac_jax import cli, config, gin_guard
from qac_jax.errors import UserError
from qac_jax.pipeline import recipe


HEAD = "from __gin__ import dynamic_registration\n"
OURS = "from qac_jax.pipeline import recipe\nfrom qac_jax.stages import prepare\n"
TRICKS = {
    "a program": "import subprocess\nsubprocess.Popen.args = ['touch', '{mark}']\n"
    "recipe.Recipe.title = @subprocess.Popen()\n",
    "a function of os": "import os\nos.mkdir.path = '{mark}'\nrecipe.Recipe.title = @os.mkdir()\n",
    "timeit": 'import timeit\ntimeit.timeit.stmt = \'open("{mark}", "w")\'\n'
    "recipe.Recipe.title = @timeit.timeit()\n",
    "a module beside the recipe": "import evil_module\n",
    "from … import": "from evil_module import thing\n",
    "a renamed module": "import evil_module as recipe2\n",
    "a module that ours imports": "from qac_jax.artifacts import writing\n"
    "writing.os.mkdir.path = '{mark}'\nrecipe.Recipe.title = @writing.os.mkdir()\n",
    "a function of ours": "from qac_jax import artifacts\n"
    "artifacts.remove.path = '{mark}'\nrecipe.Recipe.title = @artifacts.remove()\n",
    "a method of ours": "from qac_jax.pipeline import stage\n"
    "recipe.Recipe.title = @stage.Stage.make()\n",
    "a class of ours that acts": "from qac_jax.artifacts import writing\n"
    "recipe.Recipe.title = @writing.Writer()\n",
    "an included file": "include 'tricks.gin'\n",
}


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("by", ["plan", "run --dry_run", "stage"])
def test_gin_runs_no_programs(trick, by, tmp_path, capsys, monkeypatch):
    mark = tmp_path / "mark"
    (tmp_path / "evil_module.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (tmp_path / "tricks.gin").write_text(HEAD + OURS + TRICKS["a program"].format(mark=mark))
    file = tmp_path / "r.gin"
    file.write_text(HEAD + OURS + TRICKS[trick].format(mark=mark))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    verb = {
        "plan": ["plan", str(file)],
        "run --dry_run": ["run", str(file), "--dry_run"],
        "stage": [
            "prepare",
            "--format",
            "text",
            "--input",
            ".",
            "--dry_run",
            "--gin_file",
            "r.gin",
        ],
    }[by]
    assert cli.main(verb) == 2
    said = capsys.readouterr().err
    assert said.startswith("qac: ") and said.count("\n") == 1
    assert "gin files may name" in said and ".gin:" in said
    assert not mark.exists()


def test_values_are_literals(tmp_path):
    """Gin evaluates no expressions; macros refer to values."""
    file = tmp_path / "r.gin"
    file.write_text(HEAD + f"A = __import__('os').mkdir('{tmp_path}/mark')\n")
    with pytest.raises(UserError, match="not valid gin"):
        config.apply(config.Settings(files=[str(file)]))
    assert not (tmp_path / "mark").exists()


def test_the_user_allows_packages(tmp_path, monkeypatch):
    monkeypatch.delenv(gin_guard.VARIABLE)
    file = tmp_path / "mine.gin"
    file.write_text(HEAD + "import toy_stages\ntoy_stages.Numbers.count = 4\n")
    config.register([toy_stages.Numbers])
    with pytest.raises(UserError, match="'toy_stages' is not imported.*--gin_modules toy_stages"):
        config.apply(config.Settings(files=[str(file)]))
    config.apply(config.Settings(files=[str(file)], modules=["toy_stages"]))
    assert config.build(toy_stages.Numbers).count == 4
    file.write_text(HEAD + "import toy_stages\ntoy_stages.json.dumps.obj = 1\n")
    with pytest.raises(UserError, match="--gin_modules json"):
        config.apply(config.Settings(files=[str(file)], modules=["toy_stages"]))
    config.apply(config.Settings())


@pytest.mark.parametrize("name", ["../up", "/tmp/x", ".hidden", "a/b"])
def test_recipes_write_inside_of_out_only(name: str, tmp_path: Path):
    stage = toy_stages.Numbers()
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        recipe.ordered(recipe.Recipe(stages={name: stage}))
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        recipe.ordered(recipe.Recipe(stages={"a": stage}, published={name: "stage:a/x"}))
