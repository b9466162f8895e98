"""Bad and hostile input costs a bounded time and memory, and is refused in one sentence."""

import gzip
import os
import resource
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_torch_files import pickled, tensor

from qac_jax import artifacts, cli
from qac_jax.errors import DataError, UserError
from qac_jax.formats import files
from qac_jax.formats.bad_lines import BadLines
from qac_jax.hub import names, torch_files, weights
from qac_jax.models.bert import BertConfig
from qac_jax.text import tokenizers
from qac_jax.text.passages import Cutter, Cutting


@pytest.fixture
def quick() -> Iterator[None]:
    """The test takes at most as long as a user waits for a refusal."""

    def late(*_: object) -> None:
        raise AssertionError("it takes more than 20 s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def shared_tuples(depth: int) -> bytes:
    """A tuple of 2^depth elements in a few bytes."""
    twice = b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(depth))
    return b")" + twice


HOSTILE = {
    "a nested shared tuple as a key": b"}" + shared_tuples(60) + b"K\x01s.",
    "pairs with such a key": b"ccollections\nOrderedDict\n(" + shared_tuples(60) + b"tR.",
    "deep lists": b"]" * 100_000 + b"a" * 10 + b".",
    "a huge text": b"\x8d" + (2**62).to_bytes(8, "little") + b".",
    "a huge memo": b"Nr\xff\xff\xff\x7f.",
    "an instance": b"(ios\nsystem\n.",
    "nothing": b"",
    "over 16 MB": b"N0" * (9 << 20) + b"N.",
}


def test_reading_a_pickle_is_bounded(tmp_path, quick):
    for name, data in HOSTILE.items():
        path = tmp_path / "pytorch_model.bin"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x04" + data)
        with pytest.raises(UserError):
            torch_files.read(path)
            pytest.fail(f"{name} was read")


def test_tensors_that_share_one_storage_do_not_fill_the_memory(tmp_path, quick):
    whole = tensor(size=1 << 16, shape=(1 << 16,), strides=(1,))
    state = {f"t{i}": whole for i in range(10_000)}  # 2.6 GB out of 256 kB
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(state))
        archive.writestr("archive/data/0", b"\0" * (4 << 16))
    with pytest.raises(UserError, match="many times larger than the file"):
        torch_files.read(path)


def test_long_runs_of_one_character_are_cut_in_linear_time(quick):
    cutter = Cutter(Cutting(cut="sentences"), tokenizers.load(), "shipped")
    for text in ("." * 100_000, "a. " * 30_000, "!" * 50_000, ". " * 30_000, "x" * 100_000):
        began = time.process_time()
        (found,) = cutter.cut([text], "d")
        assert "".join("".join(found).split()) == "".join(text.split())
        assert time.process_time() - began < 8


def test_a_bomb_of_one_line_takes_little_memory(tmp_path, monkeypatch):
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b"short\n") + gzip.compress(b" " * (1 << 20)) * 256)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="bomb.jsonl.gz:2: a line of more than 16,777,216 bytes"):
        list(files.text_lines(files.Piece(str(path)), BadLines()))
    monkeypatch.setattr(files, "LONGEST_FILE", 4000)
    with pytest.raises(DataError, match="a file of more than 4,000 bytes"):
        files.whole_text(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def test_a_pipe_is_refused_at_once(tmp_path, capsys, quick):
    os.mkfifo(place := tmp_path / "corpus.jsonl")  # reading it would wait for ever
    flags = ["--format", "beir", "--documents", str(place), "--out", str(tmp_path / "out")]
    assert cli.main(["prepare", *flags]) == 2
    assert capsys.readouterr().err.count("qac: ") == 1


def test_a_linked_file_is_not_copied_into_a_result(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("words")
    model = tmp_path / "model"
    model.mkdir()
    (model / "vocab.txt").symlink_to(secret)
    with pytest.raises(UserError, match="is a link to .*secret, outside of the model's folder"):
        names.refuse_foreign_link(model / "vocab.txt")
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("0" * 40)
    blob = tmp_path / "models--a--b" / "blobs" / "1"
    for folder in (snapshot, blob.parent):
        folder.mkdir(parents=True)
    blob.write_text("words")
    (snapshot / "vocab.txt").symlink_to(blob)
    names.refuse_foreign_link(snapshot / "vocab.txt")


def test_the_cache_is_its_owners(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (cache / "qac_jax").mkdir(parents=True, mode=0o755)
    with artifacts.create(tmp_path / "a", kind="words") as writer:
        with writer.open("x") as file:
            file.write("x")
    assert (cache / "qac_jax").stat().st_mode & 0o777 == 0o700
    assert Path(cache / "qac_jax" / "hashes").stat().st_mode & 0o777 == 0o700


def test_model_folders_that_are_wrong_in_one_value(tmp_path):
    for key, value in (("hidden_size", -1), ("hidden_size", 10**12), ("hidden_act", [])):
        with pytest.raises(UserError, match=f"config.json: {key} = "):
            BertConfig.from_hf({"model_type": "bert", key: value}, pooler=False, mlm_head=False)
    (tmp_path / "model.safetensors.index.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="index.json is not what it should be"):
        weights.read_folder(tmp_path)
    (tmp_path / "vocab.txt").write_bytes("[PAD]\n".encode("utf-16"))
    with pytest.raises(UserError, match="vocab.txt is not UTF-8"):
        tokenizers.load(str(tmp_path))
