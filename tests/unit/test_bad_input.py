"""Bad and hostile input costs a bounded time and memory, and is refused in one sentence."""

from __future__ import annotations

import errno
import gzip
import io
import logging
import os
import resource
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_torch_files import pickled, tensor

from qac_jax import artifacts, cli, endings, progress
from qac_jax.errors import DataError, Interrupted, UserError
from qac_jax.formats import files
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.lines import json_object
from qac_jax.hub import names, torch_files
from qac_jax.pipeline import signals
from qac_jax.report import tables
from qac_jax.text import sentences, tokenizers
from qac_jax.text.passages import Cutter, Cutting


ESCAPE = "\x1b]0;owned\x07\x1b[31mred\x9b1m"


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


# Fault 8: weights of PyTorch.


def shared_tuples(depth: int) -> bytes:
    """A tuple of 2^depth elements in a few bytes."""
    twice = b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(depth))
    return b")" + twice


HOSTILE = {
    "a nested shared tuple as a key": b"}" + shared_tuples(60) + b"K\x01s.",
    "the same in an OrderedDict": b"ccollections\nOrderedDict\n)R" + shared_tuples(60) + b"K\x01s.",
    "pairs with such a key": b"ccollections\nOrderedDict\n(" + shared_tuples(60) + b"tR.",
    "such a storage": b"(X\x07\x00\x00\x00storage" + shared_tuples(60) + b"K\x00K\x00K\x00tQ.",
    "a dict that holds itself": b"}q\x00X\x05\x00\x00\x00modelh\x00s.",
    "deep lists": b"]" * 100_000 + b"a" * 10 + b".",
    "a huge integer": b"\x8b\xff\xff\xff\x7f",
    "a huge text": b"\x8d" + (2**62).to_bytes(8, "little") + b".",
    "a huge memo": b"Nr\xff\xff\xff\x7f.",
    "an extension": b"\x82\x01.",
    "an object's state": b"ctorch._utils\n_rebuild_tensor\n}b.",
    "a call of a text": b"X\x01\x00\x00\x00a)R.",
    "an instance": b"(ios\nsystem\n.",
    "nothing": b"",
    "over 16 MB": b"N0" * (9 << 20) + b"N.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reading_a_pickle_is_bounded(name, tmp_path, quick):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x04" + HOSTILE[name])
    with pytest.raises(UserError):
        torch_files.read(path)


def test_tensors_that_share_one_storage_do_not_fill_the_memory(tmp_path, quick):
    whole = tensor(size=1 << 16, shape=(1 << 16,), strides=(1,))
    state = {f"t{i}": whole for i in range(10_000)}  # 2.6 GB out of 256 kB
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(state))
        archive.writestr("archive/data/0", b"\0" * (4 << 16))
    with pytest.raises(UserError, match="many times larger than the file"):
        torch_files.read(path)


# Fault 12: the splitter, and numbers that JSON does not know.


@pytest.mark.parametrize(
    "text", ["." * 100_000, "a. " * 30_000, "!" * 50_000, ". " * 30_000, "x" * 100_000]
)
def test_long_runs_of_one_character_are_cut_in_linear_time(text, quick):
    cutter = Cutter(Cutting(cut="sentences"), tokenizers.load(), sentences.load("shipped"))
    began = time.process_time()
    (found,) = cutter.cut([text], "d")
    assert "".join("".join(found).split()) == "".join(text.split())
    assert time.process_time() - began < 8


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_know(value):
    with pytest.raises(BadRecord, match="number"):
        json_object(f'{{"_id": "x", "text": "t", "metadata": {{"x": {value}}}}}')
    assert json_object('{"x": 1.5e3}') == {"x": 1500.0}


# Fault 13: lines without an end.


@pytest.fixture
def short_lines(monkeypatch):
    monkeypatch.setenv(files.LONGEST_LINE, "1000")


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_is_bounded_before_it_is_built(packed, tmp_path, short_lines):
    raw = b"short\n" + b" " * 3_000_000 + b"\n"
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with pytest.raises(DataError, match=r"corpus.jsonl:2: a line of more than 1,000 bytes; cut it"):
        list(files.text_lines(files.Piece(str(path)), BadLines()))
    with pytest.raises(DataError, match=r"corpus.jsonl:2: a line of more than 1,000 bytes"):
        with files.open_bytes(str(path)) as file:
            list(files.bare_lines(file, str(path)))
    with pytest.raises(DataError, match="a file of more than 4,000 bytes"):
        files.whole_text(str(path))


def test_a_bomb_of_one_line_takes_little_memory(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 20)) * 256)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="a line of more than 67,108,864 bytes"):
        list(files.text_lines(files.Piece(str(path)), BadLines()))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def test_bare_lines_are_those_of_the_file():
    for raw in (b"", b"a", b"a\n", b"a\nb", b"\n\n", b"a\r\nb\n", b"x" * 3_000_000 + b"\ny\n"):
        lines = [line.removesuffix(b"\n") for line in io.BytesIO(raw)]
        assert list(files.bare_lines(io.BytesIO(raw), "p")) == lines


def test_a_limit_that_is_not_a_number(monkeypatch):
    monkeypatch.setenv(files.LONGEST_LINE, "64 MB")
    with pytest.raises(UserError, match="QAC_LONGEST_LINE='64 MB' is not a number of bytes"):
        files.longest_line()


# Fault 9: a full disk, whoever notices it.


class LibraryError(Exception):
    pass


FULL: list[BaseException] = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/x"),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    OSError(errno.EFBIG, os.strerror(errno.EFBIG)),
    LibraryError(
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "" })'
    ),
    RuntimeError("fwrite: No space left on device; while flushing"),
    OSError("4096 requested and 0 written"),
    OSError("7680 requested and 992 written"),
    LibraryError("RESOURCE_EXHAUSTED: write failed: Disk quota exceeded"),
]


@pytest.mark.parametrize("error", FULL, ids=range(len(FULL)))
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_is_one_sentence(error, wrapped, capsys):
    def work() -> int:
        if wrapped:
            raise ValueError("the writer of shards failed") from error
        raise error

    assert endings.run(work) == 2
    said = capsys.readouterr().err
    assert said.startswith("qac: the disk is full while writing ") and said.count("\n") == 1


def test_what_threads_of_libraries_print_of_a_full_disk(monkeypatch):
    """Orbax logs what it raises later, and TensorStore's threads print past Python's."""
    said, printed = io.StringIO(), []
    monkeypatch.setattr(sys, "unraisablehook", lambda failed: printed.append(failed.exc_value))
    handler, log = logging.StreamHandler(said), logging.getLogger("absl")
    log.addHandler(handler)

    def work() -> int:
        for error in (FULL[0], ValueError("another")):
            try:
                raise error
            except Exception:
                log.exception("a thread raised an exception")
        for error in (RuntimeError("Event loop is closed"), RuntimeError("a bug")):
            sys.unraisablehook(SimpleNamespace(exc_value=error))
        return 0

    try:
        assert endings.run(work) == 0
    finally:
        log.removeHandler(handler)
    assert "another" in said.getvalue() and "No space left" not in said.getvalue()
    assert list(map(str, printed)) == ["a bug"]


def test_nothing_whole_on_a_full_disk_and_it_goes_on_afterwards(tmp_path):
    with pytest.raises(OSError):
        with artifacts.create(tmp_path / "a", kind="words", key="k") as writer:
            with writer.open("one.txt") as file:
                file.write("1")
            with writer.open("two.txt") as file:
                raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(UserError, match="unfinished"):
        artifacts.load(tmp_path / "a")
    with artifacts.create(tmp_path / "a", kind="words", key="k") as writer:
        assert writer.done == {"one.txt"}


def test_bugs_are_not_taken_for_the_users_mistakes():
    def work() -> int:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        endings.run(work)


# Fault 14: signals.


def test_a_signal_that_a_library_swallows_ends_the_next_stage():
    """Imports are full of `except Exception`, and some take everything."""
    with pytest.raises(Interrupted), signals.interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:
            pass
        with signals.interruptible():
            raise AssertionError("the stage began")
    with signals.interruptible(), signals.interruptible():
        pass  # the next command is not concerned


def test_an_interruption_is_no_failure_that_libraries_handle():
    with pytest.raises(Interrupted):
        try:
            raise Interrupted(signal.SIGTERM)
        except Exception:
            pass


def test_a_signal_at_any_time_says_how_to_go_on(capsys):
    def work() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        return 0

    with signals.interruptible():
        assert endings.run(work) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "the same command continues" in said


def test_a_signal_while_the_handling_of_signals_begins():
    code = """
import os, signal, threading
from qac_jax import endings
from qac_jax.pipeline import signals

start = threading.Thread.start
def interrupted(thread):
    start(thread)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread.start = interrupted
with signals.interruptible():
    os._exit(endings.run(lambda: 0, own_process=True))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (143, 1), ended.stderr
    assert "the same command continues" in ended.stderr


def test_a_library_does_not_log_that_it_was_interrupted(caplog, capsys):
    def work() -> int:
        try:
            raise Interrupted(signal.SIGINT)
        except BaseException:
            logging.getLogger("absl").exception("Save Finalize thread (save_finalize) failed.")
            raise

    assert endings.run(work) == 130
    assert "Finalize" not in caplog.text and "interrupted by signal 2" in capsys.readouterr().err


# Fault 15: what others wrote is shown, not obeyed.


def test_terminal_escapes_are_printed_as_text(capsys):
    def work() -> int:
        print(f"passage: {ESCAPE}\tend\udcff")
        progress.say(f"reading {ESCAPE}")
        raise UserError(f"{ESCAPE} is not a file")

    assert endings.run(work) == 2
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert not set(text) & set("\x1b\x07\x9b") and "\\u001b[31mred" in text
    assert "\\udcff" in captured.out and "\tend" in captured.out


def test_an_error_is_not_a_page_long(capsys):
    def work() -> int:
        raise UserError("x" * 100_000)

    assert endings.run(work) == 2
    assert len(capsys.readouterr().err) < 1100


def test_names_of_folders_are_no_html_in_markdown():
    table = tables.markdown(["<b>system</b>"], [["run_<img src=x onerror=alert(3)>"], ["<0.0001"]])
    assert "<b" not in table and "<img" not in table and "</b" not in table
    assert "&lt;img src=x" in table and "| <0.0001 |" in table


@pytest.mark.parametrize("out", ["/proc/qac", "/dev/null/x", "abc://x/y", "x" * 300])
def test_places_that_cannot_be_written_to(out, tmp_path, capsys):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "A fish."}\n')
    verb = ["prepare", "--format", "beir", "--input", str(tmp_path), "--out", out]
    assert cli.main(verb) == 2
    said = capsys.readouterr().err
    assert "choose another" in said or "is not a store that is known" in said


@pytest.mark.parametrize("kind", ["pipe", "loop", "gone", "device"])
def test_what_is_no_file_is_refused_at_once(kind, tmp_path, capsys, quick):
    place = tmp_path / "corpus.jsonl"
    if kind == "pipe":
        os.mkfifo(place)  # reading it would wait for ever
    elif kind == "device":
        place = Path("/dev/null")
    else:
        place.symlink_to(place if kind == "loop" else tmp_path / "nowhere")
    verb = ["prepare", "--format", "beir", "--input", str(place), "--out", str(tmp_path / "out")]
    assert cli.main(verb) == 2
    assert capsys.readouterr().err.count("qac: ") == 1
    if kind == "pipe":
        with pytest.raises(UserError, match="is not a file"):
            files.compression(str(place))


def test_a_linked_file_is_not_copied_into_a_result(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("words")
    model = tmp_path / "model"
    model.mkdir()
    (model / "vocab.txt").symlink_to(secret)
    with pytest.raises(UserError, match="is a link to .*secret, outside of the model's folder"):
        names.refuse_foreign_link(model / "vocab.txt")
    (model / "real.txt").write_text("words")
    (model / "tokenizer.json").symlink_to("real.txt")
    names.refuse_foreign_link(model / "tokenizer.json")
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
    assert Path(cache / "qac_jax" / "verified").stat().st_mode & 0o777 == 0o700
