"""A road of every kind of artefact: each is killed once and damaged once. Nothing is lost, half or
accepted; what is refused is refused in a sentence."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import toy_retrieval as toy
from toy_kills import operations, touched

from qac_jax import artifacts, cli, fields


pytestmark = pytest.mark.slow

_JUDGED = "--queries mine/queries.jsonl --qrels mine/qrels/train.tsv"
_STEPS = "--steps 4 --batch_size 8 --microbatch 0 --save_every 2 --log_every 2"
_TINY = "--gin_file models/bert_tiny.gin --gin.bert.BertConfig.num_layers=1"

# Name -> the command, whose inputs are below ref/. The order is that of their dependencies.
COMMANDS = {
    "passages": "prepare --format beir --documents mine",
    "contexts": "extract --passages ref/passages --method bm25 --keep 3",
    "words": "tokenize --passages ref/passages --task mlm",
    "base": f"pretrain --gin_file objectives/mlm.gin {_TINY} --examples ref/words {_STEPS}",
    "bm25": "bm25 --passages ref/passages",
    "negatives": f"mine --bm25 ref/bm25 --passages ref/passages {_JUDGED} --depth 20 --keep 4",
    "triples": f"tokenize --task triples --passages ref/passages {_JUDGED} "
    "--negatives ref/negatives",
    "retriever": "finetune --gin_file objectives/finetune.gin --examples ref/triples "
    f"--init ref/base {_STEPS}",
    "vectors": "embed --encoder ref/retriever --passages ref/passages",
    "index": "index --vectors ref/vectors",
    "run": "search --index ref/bm25 --queries mine/queries.jsonl",
    "metrics": "evaluate --runs ref/run --qrels mine/qrels/test.tsv",
    "exported": "export --model ref/retriever --license apache-2.0 --name toy",
}
# Name -> a command that reads the artefact X.
READERS = {
    "passages": "bm25 --passages X",
    "contexts": "tokenize --passages ref/passages --contexts X",
    "words": "inspect X --task mlm",
    "bm25": "search --index X --queries mine/queries.jsonl",
    "negatives": "tokenize --task triples --passages ref/passages --queries mine/queries.jsonl "
    "--qrels mine/qrels/train.tsv --negatives X",
    "retriever": "embed --encoder X --passages ref/passages",
    "vectors": "index --vectors X",
    "index": "search --index X --queries mine/queries.jsonl",
    "run": "evaluate --runs X --qrels mine/qrels/test.tsv",
}


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Makes every artefact; its name -> how many file operations that took."""
    folder = tmp_path_factory.mktemp("road")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        toy.write_collection(folder / "mine", 40, 40, train=24)
        yield {
            name: operations(partial(made, name, f"ref/{name}"), folder / "ref" / name)
            for name in COMMANDS
        }


def made(name: str, out: str) -> None:
    assert cli.main([*COMMANDS[name].split(), "--out", out]) == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_whatever_the_options_say_only_out_is_written(name: str, road: dict[str, int]) -> None:
    """Every option that is a free text names a file of someone else, as a recipe might."""
    letter, words = Path("letter.txt"), COMMANDS[name].split()
    letter.write_text("dear")
    cls = cli.VERBS[cli.ALIASES.get(words[0], words[0])].load(words)
    for option, leaf in fields.flat(cls).items():
        is_text = "str" in str(leaf.hint) and "Mapping" not in str(leaf.hint)
        if is_text and not fields.is_input(leaf.field) and not fields.choices(leaf.field):
            out = f"texts/{name}/{option}"
            given = [*words, f"--{option}={letter.absolute()}", "--out", out]
            written = touched(partial(cli.main, given), Path())
            assert {p for p in written if not f"{out}/".startswith(p) and out not in p} == set()
            assert letter.read_text() == "dear"


KILLED = (
    "import sys, toy_kills; from pathlib import Path\n"
    "watch = toy_kills.watched(Path(sys.argv[1]), int(sys.argv[2]))\n"
    "from qac_jax import cli; sys.exit(cli.main(sys.argv[3:]))"
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_run_loses_nothing(name: str, road: dict[str, int]) -> None:
    """SIGKILL at a file operation of a real process; then the same command again."""
    out, whole = f"killed/{name}", artifacts.load(f"ref/{name}")
    at = random.Random(name).randint(road[name] // 3, road[name] - 1)
    words = [out, str(at), *COMMANDS[name].split(), "--out", out]
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", KILLED, *words], env={**os.environ, **path})
    assert done.returncode == -signal.SIGKILL, f"operation {at} of {road[name]}"
    if (Path(out) / artifacts.COMMIT).exists():
        artifacts.load(out).verify()
    made(name, out)
    found = artifacts.load(out)
    found.verify()
    assert (found.identity, found.count) == (whole.identity, whole.count)
    files = {str(p.relative_to(out)) for p in Path(out).rglob("*") if p.is_file()}
    assert files == {*found.files, artifacts.COMMIT, artifacts.LOCK}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_refused(name: str, road: dict[str, int], capsys) -> None:
    target = Path("damaged") / name
    shutil.copytree(Path("ref") / name, target)
    record = json.loads((target / artifacts.COMMIT).read_text())
    sizes = {n: e["size"] for n, e in record["files"].items() if not e.get("volatile")}
    file = target / max(sizes, key=lambda n: sizes[n])
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 16
    file.write_bytes(raw)
    words = READERS[name].replace("X", str(target)).split()
    out = [] if words[0] == "inspect" else ["--out", f"read/{name}"]
    assert cli.main([*words, *out]) == 2
    assert f"{file} is damaged" in capsys.readouterr().err
