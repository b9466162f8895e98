"""Bad input: texts, runs, judgements, flags and gin that are wrong; artefacts that are damaged."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from campaign_lab import LIMIT, Lab, Outcome

from qac_jax import artifacts


Case = tuple[str, list[str]]

_TOKENS = [
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\n", b"\r", b"\t", b'"', b"\\", b"{", b"}",
    b"[" * 5000, b"NaN", b"Infinity", b"1e999", b"-1", b"null", b"true", b"\x1b[31m",
    b"9" * 5000, b"x" * 70_000,
    b"." * 20_000, b"a. " * 5000, b"\xe2\x80\xae", b"\\ud800", b"<!DOCTYPE a>",
    b"../../etc/passwd",
]  # fmt: skip
_VALUES = [
    "-1",
    "0",
    "x",
    "",
    "nan",
    "1e999",
    "999999999999",
    "[]",
    "\x1b[31m",
    "../..",
    "é",
    "1.5",
]
_GIN = [
    "None", "[]", "{}", "'x'", "-1", "0", "1e999", "@prepare.Prepare", "%NOPE", "@os.system()",
    "()", "True", "10**9", "'" + "a" * 3000 + "'", "[" * 500, "@index.Bm25()",
    "{'a': @prepare.Prepare()}",
]  # fmt: skip
_NAMES = ["Recipe.stages", "Recipe.parts", "Recipe.title", "Prepare.documents", "Prepare.format",
          "Cutting.max_tokens", "Cutting.cut", "Extract.keep", "Bm25.k1", "Search.k"]  # fmt: skip
_FLAGS = {
    "prepare --format beir --documents mine": ["format", "max_tokens", "min_tokens", "cut", "seed",
                                               "tokenizer", "shards", "workers", "options"],
    "bm25 --passages ref/passages": ["k1", "b", "passages", "stemmer", "seed", "expand"],
    "extract --passages ref/passages --method bm25": ["keep", "method", "passages", "seed"],
    "search --index ref/bm25 --queries mine/queries.jsonl": ["k", "index", "queries", "seed"],
    "tokenize --passages ref/passages --task mlm": ["task", "tokenizer", "max_length", "shards"],
}  # fmt: skip


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four changes."""
    content = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content) + 1)
        kind = rng.randrange(6)
        if kind == 0 and content:
            content[min(place, len(content) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[place:place] = rng.choice(_TOKENS)
        elif kind == 2:
            del content[place : place + rng.randint(1, 60)]
        elif kind == 3 and rng.random() < 0.3:
            del content[place:]
        elif kind == 4:
            stop = min(len(content), place + rng.randint(1, 20))
            content[place:stop] = rng.choice(_TOKENS)
        else:
            lines = bytes(content).split(b"\n")
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            content = bytearray(b"\n".join(lines))
    return bytes(content)


def _documents(lab: Lab, bad: Path, rng: random.Random) -> Case:
    raw = b"\n".join((lab.work / "mine/corpus.jsonl").read_bytes().split(b"\n")[:6]) + b"\n"
    content, name = mutated(raw, rng), "corpus.jsonl"
    if rng.random() < 0.2:
        content, name = mutated(gzip.compress(content), rng), "corpus.jsonl.gz"
    (bad / name).write_bytes(content)
    cut = rng.choice(["sentences", "lines", "none"])
    skip = ["--skip_bad", "5"] if rng.random() < 0.3 else []
    format = rng.choice(["beir"] * 4 + ["jsonl", "tsv", "text", "html", "auto", "dpr", "wikipedia"])
    place = bad if format in ("beir", "auto", "text", "html") else bad / name
    return format, ["prepare", "--format", format, "--documents", str(place), "--cut", cut, *skip]


def _queries(lab: Lab, bad: Path, rng: random.Random) -> Case:
    raw = b"\n".join((lab.work / "mine/queries.jsonl").read_bytes().split(b"\n")[:6]) + b"\n"
    (bad / "queries.jsonl").write_bytes(mutated(raw, rng))
    file = str(bad / "queries.jsonl")
    return "queries", ["search", "--index", "ref/bm25", "--queries", file]


def _judgements(lab: Lab, bad: Path, rng: random.Random) -> Case:
    (bad / "test.tsv").write_bytes(mutated((lab.work / "mine/qrels/test.tsv").read_bytes(), rng))
    file = str(bad / "test.tsv")
    return "judgements", ["evaluate", "--searched", "ref/run_bm25", "--qrels", file]


def _runs(lab: Lab, bad: Path, rng: random.Random) -> Case:
    whole = next((lab.work / "ref/run_bm25").glob("*.trec")).read_bytes()
    (bad / "a.trec").write_bytes(mutated(b"\n".join(whole.split(b"\n")[:200]) + b"\n", rng))
    qrels = "mine/qrels/test.tsv"
    return "runs", ["evaluate", "--run", str(bad / "a.trec"), "--qrels", qrels]


def _gin(lab: Lab, bad: Path, rng: random.Random) -> Case:
    file, text = bad / "r.gin", (lab.work / "recipe.gin").read_bytes()
    if rng.random() < 0.5:
        file.write_bytes(mutated(text, rng))
        return "gin", [rng.choice(["plan", "run"]), str(file)]
    return "gin", ["plan", "recipe.gin", f"--gin.{rng.choice(_NAMES)}={rng.choice(_GIN)}"]


def _flags(lab: Lab, bad: Path, rng: random.Random) -> Case:
    del lab, bad
    command = rng.choice(list(_FLAGS))
    words = command.split()
    if rng.random() < 0.2:
        words.pop(rng.randrange(len(words)))
    flag, value = rng.choice(_FLAGS[command]), rng.choice(_VALUES)
    return "flags", [*words, f"--{flag}={value}"]


_CASES: dict[str, Callable[[Lab, Path, random.Random], Case]] = {
    "documents": _documents,
    "queries": _queries,
    "judgements": _judgements,
    "runs": _runs,
    "gin": _gin,
    "flags": _flags,
}
# Group -> how many it gets in proportion.
INPUTS = {name: 2 if name == "documents" else 1 for name in _CASES}


def feed(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """A bad input; what no input may bring about is a fault."""
    del number
    outcome, bad = Outcome(), lab.work / "bad"
    shutil.rmtree(bad, ignore_errors=True)
    bad.mkdir()
    _, arguments = _CASES[name](lab, bad, rng)
    out = "" if arguments[:1] == ["plan"] else "bad/out"
    ended = lab.run(arguments, out=out, limit=LIMIT)
    outcome.of_input(ended)
    if ended.code and out and (lab.work / out / artifacts.COMMIT).exists():
        outcome.fault("half", "failed, but its output says that it is whole")
    return outcome


READERS = {
    "passages": "bm25 --passages X",
    "contexts": "tokenize --passages ref/passages --contexts X",
    "bm25": "search --index X --queries mine/queries.jsonl",
    "negatives": "tokenize --task triples --passages ref/passages --queries mine/queries.jsonl "
    "--qrels mine/qrels/train.tsv --negatives X",
    "run_bm25": "evaluate --searched X --qrels mine/qrels/test.tsv",
    "words": "inspect X --task mlm",
    "vectors": "index --vectors X",
    "index": "search --index X --queries mine/queries.jsonl",
    "retriever": "embed --encoder X --passages ref/passages",
}


def damage(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """An artefact with one damaged file: refused, whatever the damage is."""
    del number
    outcome = Outcome()
    what = _damage(lab.work / "ref" / name, lab.work / "bad", rng)
    arguments = READERS[name].replace("X", "bad").split()
    out = "" if arguments[0] == "inspect" else "bad_out"
    shutil.rmtree(lab.work / "bad_out", ignore_errors=True)
    ended = lab.run(arguments, out=out, limit=LIMIT)
    outcome.of_input(ended)
    if ended.code == 0:
        outcome.fault("unnoticed", what)
    return outcome


def _damage(whole: Path, target: Path, rng: random.Random) -> str:
    """A copy of the artefact with one file cut, zeroed, changed or away; logs are left alone."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(whole, target)
    record = json.loads((target / artifacts.COMMIT).read_text())
    kept = [n for n, e in record["files"].items() if not e.get("volatile") and e["size"]]
    # A folder without a record is somebody's files, which some verbs read too.
    kinds = ["cut", "zeroed", "noise", "flipped"]
    name, kind = rng.choice([*kept, artifacts.COMMIT]), rng.choice(kinds)
    if name in kept and rng.random() < 0.2:
        kind = "away"
    raw = bytearray((target / name).read_bytes())
    if kind == "cut":
        raw = raw[: rng.randrange(len(raw))]
    elif kind == "zeroed":
        raw = bytearray(len(raw))
    elif kind == "noise":
        raw = bytearray(rng.randbytes(len(raw)))
    elif kind == "flipped":
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    (target / name).write_bytes(raw)
    if kind == "away":
        (target / name).unlink()
    return f"{name} {kind}"
