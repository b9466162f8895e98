"""Where stages write: never over an input, through a link or over files of others; into stores."""

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import toy_live
import toy_store
from toy_kills import Killed, at_operation
from toy_stages import Doubled, Numbers, Summed

from qac_jax import artifacts, cli, fields
from qac_jax.artifacts import stores
from qac_jax.errors import UserError
from qac_jax.pipeline import recipe, stage
from qac_jax.pipeline.recipe import Recipe
from qac_jax.processes import Place
from qac_jax.retrieval import corpus
from qac_jax.retrieval.index import place_of_encoder as found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> toy_store.Store:
    return toy_store.install(monkeypatch, tmp_path)


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_an_artefact_is_copied_whole_and_its_commit_last(store, tmp_path) -> None:
    made = stage.execute(Numbers(), "gs://b/runs/numbers")
    whole = ["artifact.json", "numbers-00000.jsonl", "numbers-00001.jsonl"]
    assert files(tmp_path / "b/runs/numbers") == whole
    assert store.written[-1] == "gs://b/runs/numbers/artifact.json"
    store.written.clear()
    shutil.rmtree(tmp_path / "copies")  # another machine
    again = stage.execute(Numbers(), "gs://b/runs/numbers")
    assert again.identity == made.identity and not [w for w in store.written if "jsonl" in w]
    again.verify()
    with stores.written("gs://b/run.trec") as place:
        Path(place).write_text("q")
    assert (tmp_path / "b/run.trec").read_text() == "q"


def test_a_recipe_in_a_store_and_its_inputs(store, tmp_path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "base.txt").write_text("5")
    stages = {
        "numbers": Numbers(base="gs://b/base.txt", count=3),
        "double": Doubled(numbers="stage:numbers"),
        "sum": Summed(numbers="stage:double"),
    }
    recipe.run(Recipe(stages), "gs://b/out")
    assert (tmp_path / "b/out/sum/sum.json").read_text() == str(2 * (5 + 6 + 7))
    assert artifacts.load("gs://b/out/stages/numbers").record["fields"]["base"] == "gs://b/base.txt"
    shutil.rmtree(tmp_path / "copies")
    recipe.run(Recipe(stages), "gs://b/out", start="sum")
    assert artifacts.load("gs://b/out/sum").count == 1


def test_an_interrupted_run_or_upload_continues(store, tmp_path, monkeypatch) -> None:
    with pytest.raises(RuntimeError, match="fails on purpose"):
        stage.execute(Numbers(fail_at=1), "gs://b/numbers")
    assert not (tmp_path / "b/numbers").exists()
    kept = tmp_path / "copies/gs/b/numbers/numbers-00000.jsonl"
    before = kept.stat().st_mtime_ns

    def cut_short(source, target):
        put(source, target)
        raise OSError("the network is gone")

    put = stores._put
    monkeypatch.setattr(stores, "_put", cut_short)
    with pytest.raises(OSError, match="the network is gone"):
        stage.execute(Numbers(), "gs://b/numbers")
    assert files(tmp_path / "b/numbers") == [".unfinished.json", "numbers-00000.jsonl"]
    monkeypatch.setattr(stores, "_put", put)
    made = stage.execute(Numbers(), "gs://b/numbers")
    assert kept.stat().st_mtime_ns == before
    assert made.identity == stage.execute(Numbers(), tmp_path / "here").identity
    whole = ["artifact.json", "numbers-00000.jsonl", "numbers-00001.jsonl"]
    assert files(tmp_path / "b/numbers") == whole
    (tmp_path / "b/numbers/notes.txt").write_text("mine")
    stage.execute(Numbers(shards=1), "gs://b/numbers", replace=True)
    assert files(tmp_path / "b/numbers") == ["artifact.json", "notes.txt", "numbers-00000.jsonl"]


def test_what_is_not_ours_and_several_hosts_are_refused(store, tmp_path, monkeypatch) -> None:
    (tmp_path / "b" / "full").mkdir(parents=True)
    (tmp_path / "b" / "full" / "x").write_text("x")
    with pytest.raises(UserError, match="gs://b/full is not empty and not a folder of ours"):
        stage.execute(Numbers(), "gs://b/full")
    with pytest.raises(UserError, match="is not an address in a store"):
        stores.local("gs://b/../c")
    with pytest.raises(UserError, match="gs://b/none does not exist"):
        stage.execute(Doubled(numbers="gs://b/none"), tmp_path / "out")
    monkeypatch.setattr(Numbers, "place", lambda self: Place("numbered", 0, 2))
    with pytest.raises(UserError, match="all of them have mounted"):
        stage.execute(Numbers(), "gs://b/numbers")


def test_a_stranger_names_nothing_in_another_bucket(store, tmp_path, monkeypatch) -> None:
    """Neither as an encoder nor as texts, from the place of an index or as a path."""
    for bucket in ("b", "c"):
        stage.execute(Numbers(), f"gs://{bucket}/numbers")
    for base, bucket, fetched in (
        (stores.local("gs://b/index"), "b", True),
        (stores.local("gs://b/index"), "c", False),
        (tmp_path, "c", False),
    ):
        place = stores.local(f"gs://{bucket}/numbers")
        monkeypatch.chdir(tmp_path)
        for path in (str(place), os.path.relpath(place)):
            known = {"path": path, "relative": os.path.relpath(place, base), "identity": ""}
            owner: Any = SimpleNamespace(path=base, info={"encoder": known})
            for ask in (lambda k=known, b=base: corpus.find(k, b), lambda o=owner: found(o)):
                shutil.rmtree(tmp_path / "copies", ignore_errors=True)
                with contextlib.suppress(UserError):
                    ask()
                assert place.exists() == fetched


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
_READ = "folder"


def test_no_option_of_a_stage_is_an_output_path() -> None:
    known = f"{_NAMED}{_SHOWN}{_READ}".split()
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


def test_a_living_index_is_not_in_what_is_added_to_it(tmp_path, capsys) -> None:
    live = toy_live.live(tmp_path / "docs" / "live", toy_live.records(3))
    (tmp_path / "docs" / "a.txt").write_text("bees")
    for source in ("docs", "docs/live", "docs/live/../live/"):
        assert cli.main(["index", str(live.folder), "--add", str(tmp_path / source)]) == 2
        assert "lie in one another" in capsys.readouterr().err
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
