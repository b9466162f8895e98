"""Where stages write: never over an input, through a link or over files of others; into stores."""

import shutil
from pathlib import Path

import pytest
import toy_store
from toy_stages import Doubled, Numbers, Summed

from qac_jax import artifacts
from qac_jax.artifacts import stores
from qac_jax.errors import UserError
from qac_jax.pipeline import recipe, stage
from qac_jax.pipeline.recipe import Recipe
from qac_jax.processes import Place


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
    assert artifacts.load("gs://b/out/numbers").record["fields"]["base"] == "gs://b/base.txt"
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


@pytest.mark.parametrize("out", ["data", "data/sub/out", ".", "link/out"])
def test_an_output_and_an_input_do_not_lie_in_one_another(out, tmp_path) -> None:
    made = stage.execute(Numbers(count=2), tmp_path / "data" / "sub")
    (tmp_path / "link").symlink_to(tmp_path / "data" / "sub")
    for given in (Doubled(numbers=str(made.path)), Numbers(base=str(tmp_path / "data" / "s*"))):
        with pytest.raises(UserError, match="lie in one another; choose another --out"):
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
