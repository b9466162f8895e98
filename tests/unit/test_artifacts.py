"""Artefacts are whole or refused; identity is the content's; one writer a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qac_jax import artifacts
from qac_jax.errors import UserError


def write(out: Path, words=("a", "b"), key="k", **options) -> artifacts.Artifact:
    with artifacts.create(out, kind="words", key=key, stage="test", **options) as writer:
        for i, word in enumerate(words):
            with writer.open(f"words-{i}.txt") as file:
                file.write(word)
        writer.count = len(words)
        writer.info["longest"] = max(map(len, words))
    return artifacts.load(out)


def interrupted(out: Path, words=("a", "b"), key="k", after=1) -> None:
    """A run that dies after `after` files, in the middle of the next."""
    with pytest.raises(RuntimeError, match="killed"):
        with artifacts.create(out, kind="words", key=key, stage="test") as writer:
            for i, word in enumerate(words):
                with writer.open(f"words-{i}.txt") as file:
                    if i == after:
                        file.write("hal")
                        raise RuntimeError("killed")
                    file.write(word)


def test_a_finished_folder_tells_what_it_is(tmp_path):
    artifact = write(tmp_path / "a")
    again = artifacts.load(tmp_path / "a", kind="words")
    assert (again.kind, again.count, again.info) == ("words", 2, {"longest": 1})
    assert again.identity == artifact.identity
    assert again.file("words-1.txt").read_text() == "b"
    assert not (tmp_path / "a" / artifacts.CLAIM).exists()
    again.verify()


def test_identity_is_the_content_and_nothing_else(tmp_path):
    one = write(tmp_path / "1", key="x", fields={"a": 1}, seed=1)
    two = write(tmp_path / "2", key="y", fields={"a": 2}, seed=2)
    other = write(tmp_path / "3", words=("a", "c"))
    assert one.identity == two.identity != other.identity


def test_volatile_files_and_given_identities_stay_out_of_the_bytes(tmp_path):
    identities = set()
    for name, noise in (("1", "x"), ("2", "y")):
        with artifacts.create(tmp_path / name, kind="k") as writer:
            (tmp_path / name / "log.txt").write_text(noise)
            writer.adopt("log.txt", volatile=True)
            (tmp_path / name / "params").mkdir()
            (tmp_path / name / "params" / "chunk").write_text(noise)
            writer.adopt("params", identity="same arrays")
        identities.add(artifacts.load(tmp_path / name).identity)
    assert len(identities) == 1


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda p: (p / "words-0.txt").unlink(), "is damaged: words-0.txt is missing"),
        (lambda p: (p / "words-0.txt").write_text("abc"), "is damaged: words-0.txt is 3 bytes"),
        (lambda p: (p / "artifact.json").write_text("{"), "artifact.json cannot be read"),
        (lambda p: (p / "artifact.json").write_text("[]"), "artifact.json cannot be read"),
        (lambda p: (p / "artifact.json").unlink(), "is not a folder of ours"),
    ],
)
def test_damage_is_refused(tmp_path, damage, sentence):
    write(tmp_path / "a")
    damage(tmp_path / "a")
    with pytest.raises(UserError, match=sentence):
        artifacts.load(tmp_path / "a")


def test_a_flipped_byte_is_found_by_verify(tmp_path):
    artifact = write(tmp_path / "a")
    (tmp_path / "a" / "words-0.txt").write_text("z")
    with pytest.raises(UserError, match=r"words-0.txt is damaged"):
        artifact.verify()


def test_missing_and_foreign_kinds_are_refused(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(UserError, match="is of kind 'words'; expected passages or contexts"):
        artifacts.load(tmp_path / "a", kind=("passages", "contexts"))
    with pytest.raises(UserError, match="does not exist"):
        artifacts.load(tmp_path / "b")
    with pytest.raises(UserError, match="has no vectors.npy"):
        artifacts.load(tmp_path / "a").file("vectors.npy")


def test_an_interrupted_run_is_no_artefact_and_is_taken_up_again(tmp_path):
    interrupted(tmp_path / "a")
    with pytest.raises(UserError, match="is unfinished .words, begun by .* re-run that command"):
        artifacts.load(tmp_path / "a")
    with artifacts.create(tmp_path / "a", kind="words", key="k") as writer:
        assert writer.done == {"words-0.txt"}
        assert not list((tmp_path / "a").glob("*.part"))
        with writer.open("words-1.txt") as file:
            file.write("b")
        writer.count = 2
    assert artifacts.load(tmp_path / "a").identity == write(tmp_path / "b").identity


def test_a_file_that_is_not_in_the_journal_is_not_trusted(tmp_path):
    interrupted(tmp_path / "a")
    (tmp_path / "a" / "words-1.txt").write_text("who wrote this")
    (tmp_path / "a" / "words-0.txt").write_text("longer than noted")
    with artifacts.create(tmp_path / "a", kind="words", key="k") as writer:
        assert writer.done == frozenset()
        assert not list((tmp_path / "a").glob("words-*"))


def test_a_folder_is_adopted_whole_or_not_at_all(tmp_path):
    def killed(lost: str = "") -> frozenset[str]:
        """What is done after a run that adopted a folder and was killed."""
        with pytest.raises(RuntimeError):
            with artifacts.create(tmp_path / "a", kind="words", replace=True) as writer:
                folder = writer.path / "tokenizer"
                folder.mkdir(exist_ok=True)
                for name in ("a.json", "b.json"):
                    (folder / name).write_text(name)
                writer.adopt("tokenizer")
                raise RuntimeError
        journal = tmp_path / "a" / artifacts.JOURNAL
        if lost == "journal":
            journal.write_text(journal.read_text()[:-20])
        elif lost:
            (tmp_path / "a" / "tokenizer" / lost).unlink()
        with artifacts.create(tmp_path / "a", kind="words") as writer:
            return writer.done

    assert killed() == {"tokenizer/a.json", "tokenizer/b.json"}
    assert killed("b.json") == killed("a.json") == killed("journal") == frozenset()


def test_facts_survive_an_interruption(tmp_path):
    with pytest.raises(RuntimeError):
        with artifacts.create(tmp_path / "a", kind="words") as writer:
            facts: dict[str, int] = {}
            with writer.open("x", "wb", facts=facts) as file:
                file.write(b"12")
                facts["lines"] = 7
            raise RuntimeError
    with artifacts.create(tmp_path / "a", kind="words") as writer:
        assert writer.facts("x") == {"lines": 7}


def test_other_settings_and_foreign_folders_are_not_overwritten(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(UserError, match="holds a finished words made with other settings"):
        write(tmp_path / "a", key="other")
    assert write(tmp_path / "a", words=("q",), key="other", replace=True).count == 1
    interrupted(tmp_path / "b")
    with pytest.raises(UserError, match="holds an unfinished words made with other settings"):
        write(tmp_path / "b", key="other")
    with pytest.raises(RuntimeError):
        with artifacts.create(tmp_path / "d", kind="words", key="refused"):
            raise RuntimeError
    assert write(tmp_path / "d", key="other").count == 2, "nothing was written there"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.tex").write_text("precious")
    for replace in (False, True):
        with pytest.raises(UserError, match="not empty and not a folder of ours .it holds thesis"):
            write(tmp_path / "c", replace=replace)
    with pytest.raises(UserError, match="not a folder of ours"):
        artifacts.remove(tmp_path / "c")
    assert (tmp_path / "c" / "thesis.tex").read_text() == "precious"
    with pytest.raises(UserError, match="is a file"):
        write(tmp_path / "c" / "thesis.tex")


def test_two_processes_cannot_write_one_folder(tmp_path):
    child = (
        "import sys\nfrom qac_jax import artifacts\n"
        "with artifacts.create(sys.argv[1], kind='words', key='k'):\n"
        "    print('in', flush=True); sys.stdin.readline()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", child, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    with pytest.raises(UserError, match=rf"is being written by process {process.pid} on"):
        write(tmp_path / "a")
    process.communicate("\n")
    assert process.returncode == 0
    assert artifacts.load(tmp_path / "a").count == 0


def test_temporary_gives_libraries_a_path_with_the_right_ending(tmp_path):
    with artifacts.create(tmp_path / "a", kind="k") as writer:
        with writer.temporary("sub/v.npy") as path:
            assert path.suffix == ".npy"
            path.write_bytes(b"123")
    assert artifacts.load(tmp_path / "a").file("sub/v.npy").read_bytes() == b"123"
    record = json.loads((tmp_path / "a" / "artifact.json").read_text())
    assert list(record["files"]) == ["sub/v.npy"]
