"""Names of models: folders, what ships, and a fake cache of the Hugging Face Hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub
import pytest
import toy_hub
from toy_process import Qac

from qac_jax import artifacts, cli
from qac_jax.errors import UserError
from qac_jax.hub import names
from qac_jax.pipeline import inputs
from qac_jax.retrieval.index import place_of_encoder
from qac_jax.text import tokenizers


class Hub(NamedTuple):
    cache: Path
    old: str  # the commits of tiny/encoder
    new: str
    folders: dict[str, Path]

    def snapshot(self, commit: str) -> Path:
        return self.cache / "models--tiny--encoder" / "snapshots" / commit


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    root = tmp_path_factory.mktemp("hub")
    cache, folders = root / "cache", {}
    for name, seed in (("old", 0), ("new", 1)):
        folders[name] = toy_hub.save_bert(root / name, seed=seed)
    old = toy_hub.add(cache, "tiny/encoder", folders["old"], refs=("v1.0", "pr/7"))
    new = toy_hub.add(cache, "tiny/encoder", folders["new"], refs=("main",))
    toy_hub.add(cache, "tiny/words", folders["old"], without=("model.safetensors", "config.json"))
    return Hub(cache, old, new, folders)


@pytest.fixture
def hub(built: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    toy_hub.pin(monkeypatch, built.cache)
    monkeypatch.chdir(tmp_path)
    yield built
    toy_hub.point(built.cache, "tiny/encoder", built.new, ("main",))
    names.forget()


def test_revisions(hub: Hub) -> None:
    for text in ("tiny/encoder", "tiny/encoder@main", "hf:tiny/encoder", f"tiny/encoder@{hub.new}"):
        assert names.folder(text) == hub.snapshot(hub.new), text
    for text in ("tiny/encoder@v1.0", "tiny/encoder@pr/7", f"hf:tiny/encoder@{hub.old}"):
        assert names.folder(text) == hub.snapshot(hub.old), text
    assert names.pinned(names.folder("tiny/encoder@v1.0")) == f"tiny/encoder@{hub.old}"
    assert names.pinned("out/retriever") == "out/retriever"


def test_a_folder_comes_first_and_what_is_missing_is_told(hub: Hub, tmp_path: Path) -> None:
    for text, sentence in [
        ("tiny/absent", "does not hold.*`hf download tiny/absent`"),
        ("tiny/encoder@v2", f"no folder tiny/encoder@v2, .*{hub.cache} does not hold it"),
        ("minilms", "neither a folder nor what ships .*did you mean 'minilm'"),
    ]:
        with pytest.raises(UserError, match=sentence):
            names.folder(text)
    (tmp_path / "tiny" / "encoder").mkdir(parents=True)
    assert names.folder("tiny/encoder") == Path("tiny/encoder")
    assert names.folder("hf:tiny/encoder") == hub.snapshot(hub.new)


BERT = '{"model_type": "bert"}'
FILES = {
    "some/safe": {"config.json": BERT, "tokenizer.json": "{}", "model.safetensors": "safe"}
    | {"pytorch_model.bin": "", "onnx/model.onnx": "", "README.md": ""},
    "some/old": {"config.json": BERT, "modules.json": "[]", "pytorch_model.bin": "old"},
}


def test_no_more_files_are_fetched_than_are_read(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, allow_patterns: Any, ignore_patterns: Any, **_: Any) -> str:
        patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        for path in huggingface_hub.utils.filter_repo_objects(FILES[name], **patterns):
            file = tmp_path / "downloaded" / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(FILES[name][path])
        return str(tmp_path / "downloaded" / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    def fetched(name: str, want: str = names.MODEL) -> list[str]:
        place = names.folder(name, want)
        return sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())

    assert fetched("some/safe", names.TOKENIZER) == ["config.json", "tokenizer.json"]
    assert fetched("some/safe") == ["config.json", "model.safetensors", "tokenizer.json"]
    assert fetched("some/old") == ["config.json", "modules.json", "pytorch_model.bin"]


def test_a_tokenizer_needs_no_weights(hub: Hub) -> None:
    verb = cli.VERBS["tokenize"].load()
    found = inputs.resolved(verb.make(passages="x", tokenizer="tiny/words"))
    known = tokenizers.load(str(hub.folders["old"])).identity
    assert found.environment()["tokenizer"] == known
    with pytest.raises(UserError, match="tokenize.tokenizer: .*`hf download no/such`"):
        inputs.resolved(verb.make(passages="x", tokenizer="no/such"))


def test_a_result_knows_its_commit(hub: Hub, tmp_path: Path, qac: Qac) -> None:
    (tmp_path / "p.jsonl").write_text('{"_id": "1", "text": "Bees make honey."}\n')
    command = ["embed", "--encoder", "tiny/encoder", "--pooling", "mean", "--passages", "p.jsonl"]
    qac(*command, "--out", "out")
    made = artifacts.load("out")
    assert made.inputs["encoder"] == f"hf:tiny/encoder@{hub.new}"
    assert made.fields["encoder"] == made.info["encoder"]["path"] == f"tiny/encoder@{hub.new}"
    # An index of it finds its encoder by that name too.
    qac("index", "--vectors", "out", "--method", "exact", "--out", "index")
    assert place_of_encoder(artifacts.load("index")) == str(hub.snapshot(hub.new))
    # The branch moves: the folder is not taken for a result of the other commit.
    toy_hub.point(hub.cache, "tiny/encoder", hub.old, ("main",))
    names.forget()
    assert "other settings" in qac.refused(*command, "--out", "out")
    qac(*command, "--encoder", f"tiny/encoder@{hub.new}", "--out", "out")
