"""Files of strangers whose bytes are whole and whose content is nonsense, odd files and odd
surroundings: each ends in one sentence, at once."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
import toy_live
import toy_retrieval as toy
from hf_encoders import random_variables
from toy_kills import resealed
from toy_process import bounded
from toy_torch_files import pickled, tensor

from qac_jax import Retriever, artifacts
from qac_jax.errors import DataError, UserError
from qac_jax.formats.records import Records
from qac_jax.hub import huggingface, names, parameters, shared_encoder, torch_files, weights
from qac_jax.inference.encoder import Encoder
from qac_jax.live.index import LiveIndex
from qac_jax.models import backbone
from qac_jax.models.bert import BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.retrieval import tuning
from qac_jax.retrieval.vectors import Vectors
from qac_jax.text import tokenizers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.save_encoder(tmp_path_factory.mktemp("model") / "encoder")


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


def changed(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


# Numbers that are not finite are no result.


def spoil(folder: Path, value: float) -> None:
    file = folder / weights.SAFETENSORS
    tensors = {name: tensor.copy() for name, tensor in weights.read_file(file).items()}
    tensors[min(tensors)].flat[0] = value
    weights.write_file(file, tensors)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_with_weights_that_are_not_finite_is_refused(value, copy, tmp_path, qac):
    spoil(copy, value)
    (tmp_path / "c.jsonl").write_text('{"_id": "a", "text": "bees"}\n')
    words = ["embed", "--encoder", copy, "--passages", tmp_path / "c.jsonl"]
    assert "not finite" in qac.refused(*words, "--out", tmp_path / "out")
    with pytest.raises(UserError, match="not finite"):
        Retriever.load(copy)


def test_parameters_that_are_not_finite_are_not_written(tmp_path):
    with pytest.raises(UserError, match="kernel of .*out holds numbers that are not finite"):
        parameters.save(tmp_path / "out", {"dense": {"kernel": np.array([1, np.nan], np.float32)}})
    assert not (tmp_path / "out").exists()


def test_vectors_that_are_not_finite_are_refused(model, tmp_path, qac, monkeypatch):
    encoder = Encoder.load(model)
    monkeypatch.setattr(
        Encoder, "apply", lambda self, ids, *_: np.full((len(ids), self.width), np.inf)
    )
    for side in ("query", "passage"):
        with pytest.raises(UserError, match="the model gives numbers that are not finite"):
            encoder.encode(["bees"], side)
    array = np.ones((5, 4), np.float32)
    array[3, 2] = np.nan
    folder = toy.write_vectors(tmp_path / "vectors", array)
    said = qac.refused("index", "--vectors", folder, "--out", tmp_path / "index")
    assert "vector 3 is not finite" in said
    live = toy_live.live(tmp_path / "live")
    with pytest.raises(UserError, match="all finite"):
        live.add(["bees"], np.full((1, toy_live.WIDTH), np.nan, np.float32))
    assert len(LiveIndex(tmp_path / "live", encoder=toy_live.stub())) == 0


# Records and files that fit their hashes, and nothing else.


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    found = [{"_id": str(n), "text": "bees"} for n in range(3)]
    return Path(toy_examples.written(tmp_path / "passages", "passages", found))


RECORDS: dict[str, Any] = {
    "a huge count": {"count": 10**18},
    "a negative count": {"count": -1},
    "a count of truth": {"count": True},
    "contents of numbers": {"contents": {"a": 3}},
    "inputs of numbers": {"inputs": {"a": 3}},
    "a float for a size": {"files": {"offsets.npy": {"size": 1.5, "sha256": ""}}},
    "a negative size": {"files": {"offsets.npy": {"size": -1, "sha256": ""}}},
    "a truth for a size": {"files": {"offsets.npy": {"size": True, "sha256": ""}}},
    "a schema of text": {"schema": "1"},
    "a list for info": {"info": []},
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_of_nonsense_is_refused(case: str, passages: Path) -> None:
    resealed(passages, **RECORDS[case])
    with pytest.raises(UserError, match="cannot be read|does not fit what it counts"):
        Records(artifacts.load(passages))


@pytest.mark.parametrize("name", ["texts", "encoder", "side", "dimension"])
def test_what_a_record_says_of_its_kind_has_types(name: str, tmp_path: Path) -> None:
    folder = toy.write_vectors(tmp_path / "vectors", np.ones((5, 4), np.float32))
    info = artifacts.load(folder).info
    values: tuple[Any, ...] = (1.5, [], {"path": 3})
    for value in values:
        resealed(folder, info={**info, name: value})
        with pytest.raises(UserError, match=f"{name} = "):
            artifacts.load(folder)


OFFSETS: dict[str, np.ndarray] = {
    "floats": np.array([0, 28, 56, 84], np.float64),
    "unordered": np.array([0, 56, 28, 84], np.uint64),
    "another start": np.array([1, 28, 56, 84], np.uint64),
    "too many": np.array([0, 28, 56, 84, 84], np.uint64),
    "negative": np.array([0, -28, 56, 84], np.int64),
    "a table": np.array([[0, 28, 56, 84]], np.uint64),
    "objects": np.array([{}], object),
    "none": np.zeros(0, np.uint64),
}


@pytest.mark.parametrize("case", OFFSETS)
def test_offsets_of_nonsense_are_refused(case: str, passages: Path) -> None:
    np.save(passages / "offsets.npy", OFFSETS[case], allow_pickle=True)
    resealed(passages)
    with pytest.raises(UserError, match="offsets.npy"):
        Records(artifacts.load(passages))


@pytest.mark.parametrize("text", ['{"_id": 3', '{"_id": "0", "text": 3', "[" * 20, '{"text": "a"'])
def test_the_first_record_of_a_file_has_types(text: str, passages: Path) -> None:
    file = passages / "passages-00000-of-00001.jsonl"
    first = file.read_bytes().index(b"\n")
    line = text.ljust(first - 1) + ("}" if text[0] == "{" else "[")
    file.write_bytes(line.encode() + file.read_bytes()[first:])
    resealed(passages)
    for read in (lambda records: records[0], list, lambda records: records[2]):
        with pytest.raises(DataError, match="make it again"):
            read(Records(artifacts.load(passages)))


@pytest.mark.parametrize("dtype", ["float64", "int32", ">f4"])
def test_vectors_of_another_type_are_refused(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones((2, 3), dtype))
    with pytest.raises(UserError, match="expected float32 or float16"):
        Vectors([str(tmp_path / "v.npy")])


# Model folders.

CONFIGS: dict[str, Any] = {
    "no width": {"hidden_size": 0},
    "a huge width": {"hidden_size": 10**12},
    "a list for a name": {"hidden_act": []},
    "a million layers": {"num_hidden_layers": 10**6},
    "a huge number": {"pad_token_id": 10**400},
    "a huge number for a rate": {"layer_norm_eps": 10**400},
    "types without end": {"type_vocab_size": 10**12},
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_configuration_of_nonsense_is_refused(case: str, copy: Path) -> None:
    changed(copy / "config.json", **CONFIGS[case])
    with pytest.raises(UserError, match="config.json"):
        huggingface.load(copy)


SIZES = ("vocab_size=-1", "num_layers=-1", "num_layers=1000000000", "num_heads=0", "pad_id='x'")
RATES = ("layer_norm_eps=1e999", "hidden_dropout=None", "initializer_range=-1e999")


@pytest.mark.parametrize("binding", [*SIZES, *RATES])
def test_sizes_of_nonsense_in_gin_are_refused(binding, tmp_path, qac):
    gin = ("--gin_file", "objectives/mlm.gin", "--gin_file", "models/bert_tiny.gin")
    bound = f"--gin.bert.BertConfig.{binding}"
    said = qac.refused("pretrain", *gin, "--examples", tmp_path, bound, "--dry_run")
    assert f"BertConfig.{binding.split('=')[0]} = " in said


@pytest.mark.parametrize("name", ["T5Config", "T5EncoderConfig", "PointerConfig", "ElectraConfig"])
def test_sizes_of_nonsense_are_refused_in_every_architecture(name):
    for size in ({"vocab_size": -1}, {"num_layers": 0}, {"layer_norm_eps": np.nan}):
        with pytest.raises(UserError, match=f"^{name}.*expected"):
            backbone.registered()[name](**size)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """An artefact of parameters."""
    module = BertConfig(30, 8, 1, 2, 16, 16).build(Runtime())
    with artifacts.create(tmp_path / "trained", kind=parameters.KIND) as out:
        out.begin("tokenizer")
        params = random_variables(module)["params"]
        saved = parameters.save(out.begin(parameters.EXPORTED), params)
        out.adopt(parameters.EXPORTED, identity=saved)
        out.write_json(parameters.MODULE, parameters.describe_module(module))
    return tmp_path / "trained"


@pytest.mark.parametrize("how", ["cut", "zeroed"])
def test_parameters_of_a_stranger_are_refused_at_once(how, trained, capfd):
    """Every file that Orbax has written, among them some that nobody reads."""
    refused = 0
    for file in (file for file in (trained / parameters.EXPORTED).rglob("*") if file.is_file()):
        raw = file.read_bytes()
        file.write_bytes(raw[: len(raw) // 2] if how == "cut" else bytes(len(raw)))
        try:
            with bounded(10):
                parameters.restored(trained / parameters.EXPORTED, Runtime())
        except UserError as error:
            refused += "make it again" in str(error)
        file.write_bytes(raw)
    assert refused >= 2 and "Traceback" not in capfd.readouterr().err


def test_parameters_do_not_unpack_to_more_than_their_files(tmp_path):
    parameters.save(tmp_path / "out", {"dense": {"kernel": np.zeros((10**6, 8), np.float32)}})
    with pytest.raises(UserError, match="describes 32,000,000 bytes in files of .*make it again"):
        parameters.restored(tmp_path / "out", Runtime())


MODULES: dict[str, Any] = {
    "no width": {"hidden_size": 0},
    "another width": {"hidden_size": 16},
    "a million layers": {"num_layers": 10**6},
    "thousands of layers": {"num_layers": 4000},
    "text for a size": {"vocab_size": "30"},
    "a float for a size": {"intermediate_size": 1.5},
    "heads below zero": {"num_heads": -1},
}


@pytest.mark.parametrize("case", MODULES)
def test_a_module_of_nonsense_is_refused(case, trained):
    module = json.loads((trained / parameters.MODULE).read_text())
    changed(trained / parameters.MODULE, config={**module["config"], **MODULES[case]})
    resealed(trained)
    with bounded(10), pytest.raises(UserError, match=r"module\.json"):
        parameters.load(artifacts.load(trained))


def test_what_a_stranger_names_is_not_fetched(tmp_path, monkeypatch):
    """By an encoder that a model shares, and by that of vectors whose index is tuned."""
    asked = []
    monkeypatch.setattr(names, "_snapshot", lambda *name: asked.append(name))
    for name in ("stranger/model", "hf:stranger/model", "shipped:../hub", "shipped:/etc", 3):
        with pytest.raises(UserError, match="is not an encoder that ships|does not come with"):
            shared_encoder.tensors({"encoder_from": {"name": name, "sha256": ""}}, tmp_path, ["a"])
    folder = toy.write_vectors(tmp_path / "vectors", np.ones((5, 4), np.float32))
    encoder = {"path": "stranger/model", "options": {}, "inference": {}, "prompts": {}}
    resealed(folder, info={**artifacts.load(folder).info, "encoder": encoder})
    (tmp_path / "q.jsonl").write_text('{"_id": "1", "text": "who?"}\n')
    with pytest.raises(UserError, match="the encoder of .* is not at stranger/model"):
        tuning.queries_of(tmp_path / "q.jsonl", artifacts.load(folder), 1, 0)
    assert not asked


def test_float8_is_refused(copy: Path) -> None:
    header = b'{"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'
    raw = len(header).to_bytes(8, "little") + header + bytes(2)
    (copy / weights.SAFETENSORS).write_bytes(raw)
    with pytest.raises(UserError, match="a type that is not read .*float8.*; save the model in"):
        huggingface.load(copy)


def test_files_of_a_model_that_are_not_text(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="index.json is not what it should be"):
        weights.read_folder(tmp_path)
    (tmp_path / "vocab.txt").write_bytes("[PAD]\n".encode("utf-16"))
    with pytest.raises(UserError, match="vocab.txt is not UTF-8"):
        tokenizers.load(str(tmp_path))


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


def test_reading_a_pickle_is_bounded(tmp_path):
    for name, data in HOSTILE.items():
        path = tmp_path / "pytorch_model.bin"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x04" + data)
        with bounded(20), pytest.raises(UserError):
            torch_files.read(path)
            pytest.fail(f"{name} was read")


def test_tensors_that_share_one_storage_do_not_fill_the_memory(tmp_path):
    whole = tensor(size=1 << 16, shape=(1 << 16,), strides=(1,))
    state = {f"t{i}": whole for i in range(10_000)}  # 2.6 GB out of 256 kB
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(state))
        archive.writestr("archive/data/0", b"\0" * (4 << 16))
    with bounded(20), pytest.raises(UserError, match="many times larger than the file"):
        torch_files.read(path)


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TOKENIZERS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "exponential": (
        "repeats a group",
        lambda spec: spec.update(
            pre_tokenizer={
                "type": "Split",
                "pattern": {"Regex": "(a+)+$"},
                "behavior": "Isolated",
                "invert": False,
            }
        ),
    ),
    "growing": (
        "texts many times longer",
        lambda spec: spec.update(normalizer={"type": "Sequence", "normalizers": [REPLACE] * 40}),
    ),
    "huge ids": (
        "numbered up to 4,000,000,000",
        lambda spec: spec["model"]["vocab"].update(zzz=4 * 10**9),
    ),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_costly_tokenizer_is_refused(case: str, tmp_path: Path) -> None:
    message, change = TOKENIZERS[case]
    tokenizers.load().save(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    change(spec)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(UserError, match=message):
        assert tokenizers.load(str(tmp_path)).vocab_size


KNOWN = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
)


def test_patterns_of_known_tokenizers_are_taken_and_costly_ones_are_not() -> None:
    assert not any(map(tokenizers._repeats, KNOWN))
    costly = ("(a+)+$", "(?:a|a)*$", "[x](a+){2,}", r"(a)\1", r"[\]](a+)+$", "a{9}{9}", "a+*")
    assert all(map(tokenizers._repeats, costly))


# Odd files and odd surroundings.


@pytest.mark.parametrize(
    ("pipe", "words"),
    [
        ("a/artifact.json", "search --index a bees"),
        ("a/artifact.json", "inspect a"),
        ("a/.unfinished.json", "bm25 --passages passages --out a"),
        ("a/.journal.jsonl", "bm25 --passages passages --out a"),
        ("a/.lock", "bm25 --passages passages --out a"),
        ("a/config.json", "embed --encoder a --passages passages --out o"),
        ("a/tokenizer.json", "embed --encoder a --passages passages --out o"),
        ("a", "index live --delete @a"),
        ("a", "bm25 --passages a --out o"),
        ("a", "prepare --format beir --documents a --out o"),
    ],
)
def test_a_pipe_is_not_waited_for(pipe, words, passages, monkeypatch, qac):
    monkeypatch.chdir(passages.parent)
    Path(pipe).parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    if pipe in ("a/.unfinished.json", "a/.journal.jsonl"):  # a run's own: it is replaced
        qac(*words.split())
    else:
        qac.refused(*words.split())


def test_a_gin_file_that_includes_itself_is_refused(tmp_path, qac):
    (tmp_path / "a.gin").write_text(f"include '{tmp_path}/a.gin'\n")
    assert "includes itself" in qac.refused("plan", tmp_path / "a.gin")


def test_a_command_line_that_is_not_utf8_is_refused(qac):
    assert "not UTF-8 (byte 0xff)" in qac.refused("search", "--index", "a", "how \udcff is")


def test_a_working_folder_that_was_removed_is_said(tmp_path, monkeypatch, qac):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "the working folder was removed" in qac.refused("recipes")
    monkeypatch.chdir(tmp_path)


def test_a_reader_that_has_gone_is_no_fault():
    for words in (["recipes"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "qac_jax", *words]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")


def test_names_of_a_stranger_do_not_steer_the_terminal(passages, qac):
    odd = "prepare\nall is well\x1b[31m"
    resealed(passages, stage=odd, inputs={odd: odd}, info={odd: odd})
    shown = qac("inspect", passages).out
    assert "\x1b" not in shown and "\nall is well" not in shown


def test_the_cache_is_its_owners(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (cache / "qac_jax").mkdir(parents=True, mode=0o755)
    with artifacts.create(tmp_path / "a", kind="words") as writer:
        with writer.open("x") as file:
            file.write("x")
    assert (cache / "qac_jax").stat().st_mode & 0o777 == 0o700
    assert Path(cache / "qac_jax" / "hashes").stat().st_mode & 0o777 == 0o700
