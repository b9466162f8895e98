"""Where stages write: never over an input, through a link or over files of others."""

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_live
from toy_kills import Killed, at_operation
from toy_process import Qac
from toy_stages import Doubled, Numbers, Summed

from qac_jax import artifacts, cli, fields
from qac_jax.errors import UserError
from qac_jax.pipeline import recipe, stage
from qac_jax.pipeline.recipe import Recipe


def test_a_store_is_to_be_mounted(tmp_path) -> None:
    wrong = Doubled(numbers="gs://b/numbers"), tmp_path / "out"
    for made, out in ((Numbers(), "s3://b/numbers"), wrong):
        with pytest.raises(UserError, match="//b/numbers is in an object store; mount it"):
            stage.execute(made, out)


@pytest.mark.parametrize("out", ["data", "data/sub/out", ".", "link/out"])
def test_an_output_and_an_input_do_not_lie_in_one_another(out, tmp_path) -> None:
    made = stage.execute(Numbers(count=2), tmp_path / "data" / "sub")
    (tmp_path / "link").symlink_to(tmp_path / "data" / "sub")
    for given in (Doubled(numbers=str(made.path)), Numbers(base=str(tmp_path / "data" / "s*"))):
        with pytest.raises(UserError, match="lie in one another; write to another folder"):
            stage.execute(given, tmp_path / out, replace=True)
    assert artifacts.load(made.path).identity == made.identity


@pytest.mark.parametrize("name", ["", "sum", "total.json"])
def test_a_recipe_writes_through_no_link(name, tmp_path) -> None:
    stages = {"numbers": Numbers(), "sum": Summed(numbers="stage:numbers")}
    described = Recipe(stages, published={"total.json": "stage:sum/sum.json"})
    letter = tmp_path / "letters" / "to_mother.txt"
    letter.parent.mkdir()
    letter.write_text("dear")
    link = tmp_path / "out" / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(letter if name == "total.json" else letter.parent)
    with pytest.raises(UserError, match="is a link to .*letters.* remove the link, or choose"):
        recipe.run(described, tmp_path / "out")
    assert letter.read_text() == "dear" and len(list(letter.parent.iterdir())) == 1
    link.unlink()
    recipe.run(described, tmp_path / "out")
    assert (tmp_path / "out/total.json").read_text() == "45"


def test_notes_in_a_stage_of_a_recipe_survive(tmp_path) -> None:
    recipe.run(Recipe({"numbers": Numbers()}), tmp_path / "out")
    note = tmp_path / "out/numbers/notes.txt"
    note.write_text("thoughts")
    for again in ({"start": "numbers"}, {}):
        with pytest.raises(UserError, match="notes.txt was not written by a run"):
            recipe.run(Recipe({"numbers": Numbers(count=3)}), tmp_path / "out", **again)
    assert note.read_text() == "thoughts"


# The options of stages that are free texts, by what they are. No option is a path that is written:
# whatever a stage writes lies below --out (the verbs do so in tests/e2e/test_campaign.py).
_NAMED = "alone base_model best bm25 datasets fused license language measures name names origin "
_NAMED += "kinds origins own packages profile settings lengths split strategies columns options "
_SHOWN = "body data instruction prefix prompt prompts query_prompt passage_prompt title where "
_SERVED = "table to "  # of a database, which is a server
_READ = "folder"


def test_no_option_of_a_stage_is_an_output_path() -> None:
    known = f"{_NAMED}{_SHOWN}{_SERVED}{_READ}".split()
    for verb in (*cli.VERBS.values(), *cli.STEPS.values()):
        for flag in ("", *cli.VARIANTS.get(verb.name, ())):
            if verb.target:
                for name, leaf in fields.flat(verb.load([flag])).items():
                    text = "str" in str(leaf.hint) and not fields.choices(leaf.field)
                    if text and not fields.is_input(leaf.field):
                        assert name in known, f"{verb.name} --{name}: is it a path that is written?"


@pytest.mark.parametrize("name", ["../up", "/tmp/up", "a/../../up", "", "."])
def test_a_name_that_leads_outside_is_not_written(name, tmp_path) -> None:
    with artifacts.create(tmp_path / "out", kind="words") as out:
        for write in (out.part, out.begin, out.scratch):
            with pytest.raises(UserError, match="does not name a file inside of --out"):
                write(name)


def test_data_are_not_in_the_folder_of_a_run(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    for out in ("data", ".", "data/../data/", "link"):
        if out == "link":
            (tmp_path / "link").symlink_to(tmp_path)
        with pytest.raises(UserError, match="lies in --out|is a link to"):
            recipe.run(Recipe({"n": Numbers()}, str(tmp_path / "data")), tmp_path / out)
    recipe.run(Recipe({"n": Numbers()}, str(tmp_path / "data")), tmp_path / "data" / "out")


def test_a_published_file_is_not_written_over_one_of_someone_else(tmp_path) -> None:
    described = Recipe({"sum": Summed(numbers="n")}, published={"total.json": "stage:sum/x"})
    (tmp_path / "total.json").write_text("mine")
    (tmp_path / "other").mkdir()
    stage.execute(Numbers(), tmp_path / "other")
    with pytest.raises(UserError, match="not a folder of this recipe .it holds total.json"):
        recipe.run(described, tmp_path)
    assert (tmp_path / "total.json").read_text() == "mine"


def test_a_living_index_is_not_in_what_is_added_to_it(tmp_path, qac: Qac) -> None:
    live = toy_live.live(tmp_path / "docs" / "live", toy_live.records(3))
    (tmp_path / "docs" / "a.txt").write_text("bees")
    for source in ("docs", "docs/live", "docs/live/../live/"):
        said = qac.refused("index", live.folder, "--add", tmp_path / source)
        assert "lie in one another" in said
    assert len(live.refresh()) == 3


# What an attacker or an accident may have left at --out, before a command runs there.


def trees(*folders: Path) -> dict[str, str]:
    """Every file, link and folder below, with its content."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            is_file = path.is_file() and not path.is_symlink()
            content = path.read_text("utf-8", "replace") if is_file else ""
            found[str(path)] = os.readlink(path) if path.is_symlink() else content
    return found


class Hostile:
    """A folder that is ours in some state, with things in it that are not; `mine` are these."""

    def __init__(self, root: Path, seed: int):
        self.draw, self.out, self.outside = random.Random(seed), root / "out", root / "outside"
        self.mine: list[Path] = []
        (self.outside / "letters").mkdir(parents=True)
        (self.outside / "letters" / "mother.txt").write_text("dear")
        stage.execute(Numbers(count=2), self.outside / "artefact")
        state = self.draw.choice(["none", "finished", "killed", "clearing"])
        if state in ("finished", "clearing"):
            stage.execute(Numbers(), self.out)
        if state in ("killed", "clearing"):
            at, count = self.draw.randint(1, 30), 10 if state == "killed" else 3
            run = lambda: stage.execute(Numbers(count=count), self.out, replace=True)  # noqa: E731
            with contextlib.suppress(Killed):
                at_operation(at, self.out, run)
        self.out.mkdir(exist_ok=True)
        for _ in range(self.draw.randint(1, 3)):
            self.draw.choice([self.file, self.link, self.nested, self.journal, self.claim])()

    def place(self) -> Path:
        names = ["notes.txt", "corpus.jsonl", "sub/notes.txt", "notes.part", "travel-journal"]
        names += ["sub/.lock", ".lock", "numbers-00000.jsonl.part", "texts", "sub/artifact.json"]
        names += ["index-000001/passages.sqlite", ".journal.jsonl.part", "artifact.json.part"]
        path = self.out / self.draw.choice(names)
        path.parent.mkdir(exist_ok=True)
        return path

    def file(self) -> None:
        path = self.place()
        if not os.path.lexists(path) and not path.name.startswith((".journal", "artifact.json.")):
            how: Callable[[], object] = self.draw.choice(
                [
                    lambda: path.write_text("years of work"),
                    lambda: os.link(self.outside / "letters" / "mother.txt", path),
                ]
            )
            how()
            self.mine += [path] if path.name != "numbers-00000.jsonl.part" else []

    def link(self) -> None:
        path = self.place()
        if not os.path.lexists(path):
            target = self.draw.choice(["letters", "letters/mother.txt", "artefact", "nothing"])
            path.symlink_to(self.outside / target)

    def nested(self) -> None:
        path = self.out / self.draw.choice(["inner", "sub/inner", "texts"])
        if not path.exists():
            stage.execute(Numbers(count=4), path)
            self.mine += [path / "numbers-00000.jsonl", path / artifacts.COMMIT]

    def foreign(self) -> list[str]:
        names = ["../outside/letters/mother.txt", str(self.outside), ".", "..", "", "sub/..", "./"]
        return self.draw.sample(names, 3)

    def journal(self) -> None:
        with (self.out / artifacts.JOURNAL).open("a") as file:
            for name in self.foreign():
                entry = {"name": name, "size": 4, "sha256": ""}
                file.write(json.dumps([self.draw.choice([entry, {"begun": name}])]) + "\n")

    def claim(self) -> None:
        if not (self.out / artifacts.COMMIT).exists():
            names = self.draw.choice([self.foreign(), {n: {} for n in self.foreign()}, [{}, 3]])
            record: dict[str, object] = {"format": "qac_jax", "kind": "numbers", "key": "k"}
            record[self.draw.choice(["clearing", "files"])] = names
            (self.out / artifacts.CLAIM).write_text(json.dumps(record))

    def commands(self) -> list[Callable[[], object]]:
        return [
            lambda: stage.execute(Numbers(), self.out),
            lambda: stage.execute(Numbers(count=5), self.out, replace=True),
            lambda: recipe.run(Recipe({"out": Numbers(shards=3)}), self.out.parent, start="out"),
            lambda: artifacts.remove(self.out),
        ]


@pytest.mark.slow
def test_a_hundred_hostile_folders_lose_nothing(tmp_path) -> None:
    refused = 0
    for seed in range(100):
        hostile = Hostile(tmp_path / str(seed), seed)
        before, kept = trees(hostile.outside), {p: p.read_text() for p in hostile.mine}
        for command in hostile.commands():
            try:
                command()
            except UserError:
                refused += 1
            assert trees(hostile.outside) == before, f"seed {seed}"
            assert {p: p.read_text() for p in hostile.mine} == kept, f"seed {seed}"
    assert 100 < refused < 400
