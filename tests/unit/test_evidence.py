"""Bundles and slices: what travels, how it is divided, what is refused."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
import toy_recipes
import toy_retrieval

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.evidence import __main__ as command
from qac_jax.evidence import bundling, layout, merging, packing, running, settings, slices
from qac_jax.evidence.layout import Bundle, PackedCell
from qac_jax.evidence.slices import Progress
from qac_jax.pipeline import grid
from qac_jax.pipeline.grid import Cell
from qac_jax.stages.train import Train


SYSTEMS = ("none", "queries-cotmae", "passages-cocondenser")


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    """Three systems of the claim's grid, one seed."""
    found = toy_recipes.grid_of("claim_qac")
    chosen = {name: found.systems[name] for name in SYSTEMS}
    return toy_recipes.placed(dataclasses.replace(found, systems=chosen, seeds=(0,)))


def test_stages_come_back_as_they_were(cells: list[Cell]) -> None:
    for cell in cells:
        for stage in cell.stages.values():
            text = json.dumps(settings.to_json(stage))
            assert settings.from_json(json.loads(text)) == stage


@pytest.mark.parametrize("name", ["os:system", "qac_jax.evidence.running:run"])
def test_only_settings_of_ours_are_built(name: str) -> None:
    with pytest.raises(UserError, match="expected a class of settings"):
        settings.from_json({"@class": name, "fields": {}})


def test_what_depends_on_a_training_of_its_own_travels(cells: list[Cell]) -> None:
    left = {place.rsplit("/", 1)[-1] for place in bundling.travelling(cells)}
    assert {"retriever_1", "encoder", "triples_2", "metrics", "run_0", "run_2"} <= left
    # The BERT that all start from, and all that only reads texts, are made before.
    assert not {"base", "pairs", "contexts", "bm25", "triples_1", "run_bm25"} & left
    # A cell by itself has nothing that others share.
    alone = bundling.travelling(cells[:1])
    assert "base" in {place.rsplit("/", 1)[-1] for place in alone}


def test_stages_that_need_more_software_are_refused(cells: list[Cell]) -> None:
    stages = {**cells[0].stages}
    trained: dict[str, Any] = {"generator": "stage:retriever_1"}
    stages["contexts"] = dataclasses.replace(stages["contexts"], **trained)
    order = ["base", "words", "passages", "questions", "bm25", "negatives_1", "triples_1"]
    stages = {name: stages[name] for name in (*order, "retriever_1", "contexts")}
    odd = dataclasses.replace(cells[0], stages=stages)
    with pytest.raises(UserError, match="contexts of none/seed_0 .generate. needs a model"):
        bundling.travelling([odd])


def test_of_other_collections_what_is_read_is_packed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = toy_retrieval.write_collection(tmp_path / "all" / name)
        (folder / "documents.jsonl").write_text("{}\n")
        (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n")
    (tmp_path / "all" / "texts").mkdir()
    (tmp_path / "all" / "texts" / "plain.jsonl").write_text("{}\n")
    bundling._copy_collections(tmp_path / "all", "", tmp_path / "packed")
    packed = {p.relative_to(tmp_path / "packed") for p in (tmp_path / "packed").rglob("*.*")}
    of_each = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
    assert packed == {Path(name, file) for name in ("one", "two") for file in of_each}


@pytest.fixture
def little_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """One file of code in a bundle, which is written in no time."""
    file = Path(packing.__file__)
    monkeypatch.setattr(packing, "code_files", lambda: [("qac_jax/evidence/packing.py", file)])


def bundle_of(tmp_path: Path) -> tuple[Bundle, Path]:
    """Two cells of stages that are never run."""
    train = settings.to_json(Train(objective=None, examples="bundle:stages/0/triples"))
    judged = {"@class": "x", "fields": {"runs": "bundle:stages/b/retriever", "k": 3}}
    stages = {"stages/b/retriever": train, "stages/c/metrics": judged, "stages/d/metrics": judged}
    cells = tuple(
        PackedCell(system, 0, {"retriever": "stages/b/retriever", "metrics": place}, (place,), ())
        for system, place in (("one", "stages/c/metrics"), ("two", "stages/d/metrics"))
    )
    table = {"rows": {"run_1": "retriever"}, "measures": ["mrr@10"], "permutations": 50}
    table = {name: settings.to_json(value) for name, value in table.items()}
    bundle = Bundle("1234", table, cells, stages)
    root = tmp_path / "root"
    root.mkdir()
    return bundle, root


def write_metrics(folder: Path, first: float) -> None:
    values = {f"q{n}": {"mrr@10": first / (n + 1)} for n in range(6)}
    mean = {"mrr@10": sum(v["mrr@10"] for v in values.values()) / 6}
    with artifacts.create(folder, kind="metrics") as out:
        results.store(out, [results.Result("run_1", mean, values, 6)], {"comparisons": []})


def write_model(folder: Path, size: int = 100) -> None:
    with artifacts.create(folder, kind="parameters") as out:
        with out.open("weights", "wb") as file:
            file.write(b"".join(n.to_bytes(4, "little") for n in range(size)))


def test_a_slice_goes_on_from_the_one_before(tmp_path: Path) -> None:
    bundle, root = bundle_of(tmp_path)
    write_model(root / "stages/b/retriever", 20_000)
    write_metrics(root / "stages/c/metrics", 1.0)
    (root / slices.LEDGER).write_text('{"devices": {"stages/b/retriever": ["cpu", "H100"]}}')
    out = tmp_path / "slice"
    slices.save(Progress(bundle, root), out, {"done": 1}, largest=5000)
    files = slices.read(out, bundle)["files"]  # type: ignore[index]
    assert len(files) > 3 and all((out / name).stat().st_size <= 5000 for name in files)

    there = tmp_path / "there"
    slices.unpack(out, bundle, there)
    progress = Progress(bundle, there)
    assert [cell.system for cell in progress.done()] == ["one"]
    assert layout.finished(there, "stages/b/retriever") is not None  # "two" still needs it

    # When nothing needs the model any more it is left behind.
    write_metrics(there / "stages/d/metrics", 0.5)
    slices.save(progress, out, {"done": 2})
    assert "stages/b/retriever" not in set(progress.kept())
    assert len(slices.read(out, bundle)["files"]) == 1  # type: ignore[index]
    assert len(list(out.glob("slice-*"))) == 1

    damaged = next(out.glob("slice-*"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="missing or damaged"):
        slices.unpack(out, bundle, tmp_path / "again")
    with pytest.raises(UserError, match="another bundle"):
        slices.read(out, dataclasses.replace(bundle, identity="5678"))


@pytest.mark.parametrize("kind", ["above", "absolute", "link"])
def test_archives_write_into_their_folder_alone(kind: str, tmp_path: Path) -> None:
    names = {"above": "../x", "absolute": str(tmp_path / "x"), "link": "x"}
    member = tarfile.TarInfo(names[kind])
    member.size = 1
    if kind == "link":
        member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc", 0
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(member, io.BytesIO(b"1"))
    (tmp_path / "out").mkdir()
    with (
        tarfile.open(tmp_path / "a.tar") as tar,
        pytest.raises(UserError, match="not a file in"),
    ):
        layout.extract(tar, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar", "out"]


def test_a_checkpoint_travels_and_scratch_of_others_does_not(tmp_path: Path) -> None:
    bundle, root = bundle_of(tmp_path)
    work = root / "stages/b/retriever" / artifacts.SCRATCH / "training"
    work.mkdir(parents=True)
    (work / "step").write_text("7")
    assert list(Progress(bundle, root).kept()) == ["stages/b/retriever"]


@pytest.mark.usefixtures("little_code")
def test_merged_slices_say_which_device_made_what(tmp_path: Path) -> None:
    bundle, root = bundle_of(tmp_path)
    archive = tmp_path / "bundle.qac"
    packing.write(bundle, root, archive, 40)
    assert layout.described(archive) == bundle
    ledger = {"devices": {"stages/b/retriever": ["cpu", "H100"], "stages/c/metrics": ["H100"]}}
    (root / slices.LEDGER).write_text(json.dumps(ledger))
    write_metrics(root / "stages/c/metrics", 1.0)
    slices.save(Progress(bundle, root), tmp_path / "first", {})
    summary = merging.merge(archive, [tmp_path / "first"], tmp_path / "part")
    assert summary["missing"] == ["two/seed_0"] and not summary["comparisons"]

    other = tmp_path / "other"
    write_metrics(other / "stages/d/metrics", 0.5)
    slices.save(Progress(bundle, other), tmp_path / "second", {})
    folders = [tmp_path / "first", tmp_path / "second"]
    summary = merging.merge(archive, folders, tmp_path / "whole")
    assert summary["missing"] == [] and len(summary["comparisons"]) == 1
    assert summary["devices"] == {"one/seed_0": ["cpu", "H100"], "two/seed_0": []}
    assert json.loads((tmp_path / "whole" / grid.SUMMARY).with_suffix(".json").read_text())
    text = (tmp_path / "whole" / "summary.md").read_text()
    assert "- cpu and H100: all" in text and "| one " in text


@pytest.mark.usefixtures("little_code")
def test_a_bundle_that_is_too_large_is_refused(tmp_path: Path) -> None:
    bundle, root = bundle_of(tmp_path)
    write_model(root / "stages/b/retriever", 50_000)
    with pytest.raises(UserError, match=r"may have 0.001; its largest parts.*code \([\d.]+ MiB\)"):
        packing.write(bundle, root, tmp_path / "large", 0.001)
    assert not list(tmp_path.glob("large*"))


def test_the_code_in_a_bundle_is_the_package_without_its_assets(tmp_path: Path) -> None:
    bundle, root = bundle_of(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_PRESET", 0)
        packing.write(bundle, root, tmp_path / "bundle", 40)
    with tarfile.open(tmp_path / "bundle") as tar:
        names = tar.getnames()
    assert names[0] == layout.DESCRIPTION and "code/qac_jax/evidence/running.py" in names
    assert not [name for name in names if "/assets/" in name]


def test_a_process_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert running.supervised(sleeping, tmp_path, began + 0.3) == -signal.SIGKILL
    assert time.monotonic() - began < 20
    assert running.supervised([sys.executable, "-c", ""], tmp_path, began + 60) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bundle"], "needs a file to write to"),
        (["bundle", "out", "demo"], "demo is a recipe; give a grid"),
        (["run", "absent", "--out", "x"], "absent does not exist; make it with"),
        (["merge", "absent", "x", "--out", "y"], "absent does not exist"),
    ],
)
def test_wrong_arguments_are_said_in_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


@pytest.mark.usefixtures("little_code")
def test_too_few_minutes_and_wrong_shares_are_refused(tmp_path: Path) -> None:
    bundle, root = bundle_of(tmp_path)
    packing.write(bundle, root, tmp_path / "bundle", 40)
    with pytest.raises(UserError, match="minutes=0.1 leaves no time"):
        running.run(tmp_path / "bundle", tmp_path / "out", minutes=0.1)
    with pytest.raises(UserError, match="share='2/2'"):
        running.run(tmp_path / "bundle", tmp_path / "out", minutes=1, share="2/2")
