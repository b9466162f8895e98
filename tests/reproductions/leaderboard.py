"""Adds a row to docs/results/leaderboard.md: own_corpus on each judged collection, and means."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "leaderboard.md"
COLLECTIONS = ("mixed", "scifact", "forum", "tales", "wikisquad", "npl", "cisi")
SYSTEMS = ("run_bm25", "run_start", "fused_start", "run_index")


def command(name: str, data: str, out: Path, labels: bool, flags: Sequence[str]) -> list[str]:
    folder = f"{data}/{name}"
    documents, questions = folder, folder
    if name == "mixed":  # is in the repository
        documents, questions = "tests/mixed/documents", "tests/mixed/questions.jsonl"
    # Without --questions, those of the collection are learned too, where it has some for training.
    learned = labels and (Path(folder) / "qrels" / "train.tsv").exists()
    asked = [] if learned else ["--questions", questions, "--questions_choose", "False"]
    words = ["qac", "run", "own_corpus", "--data_dir", documents, *asked]
    return [*words, "--out", str(out / name), "--keep", "all", *flags]


def measured(out: Path) -> tuple[dict[str, float], float]:
    """MRR@10 of SYSTEMS, and the minutes of all stages."""
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    found = {row["system"]: row["mrr@10"] for row in summary["rows"]}
    # Where the collection's own questions measure, the recommended system is the index.
    found.setdefault("run_index", found[summary["use"]["system"]])
    stages = [json.loads(file.read_text()) for file in out.glob("stages/*/artifact.json")]
    return found, sum(s["info"]["seconds"] for s in stages) / 60


def row(words: Mapping[str, str], each: Mapping[str, tuple[dict[str, float], float]]) -> str:
    """The row of the table; a collection that was not measured leaves its cell empty."""

    def figure(value: float) -> str:
        return f"{value:.3f}".lstrip("0")

    index = [figure(each[name][0]["run_index"]) if name in each else "" for name in COLLECTIONS]
    means = [figure(mean(found[name] for found, _ in each.values())) for name in SYSTEMS]
    minutes = sum(minutes for _, minutes in each.values())
    cells = [*words.values(), *index, *means, f"{minutes * (os.cpu_count() or 1):.0f}"]
    return f"| {' | '.join(cells)} |\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="launch/leaderboard.sh", description=__doc__)
    data = os.environ.get("QAC_DATA")
    parser.add_argument("--data", default=data, required=not data, help="the collections")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "leaderboard")
    parser.add_argument("--only", nargs="+", choices=COLLECTIONS, default=COLLECTIONS)
    parser.add_argument("--labels", action="store_true", help="learn the training questions too")
    parser.add_argument("flags", nargs="*", help="after --: flags of qac run own_corpus")
    options = parser.parse_args(arguments)
    each: dict[str, Any] = {}
    for name in options.only:
        words = command(name, options.data, options.out, options.labels, options.flags)
        if code := subprocess.run(words, cwd=ROOT).returncode:
            return code  # it has said why
        each[name] = measured(options.out / name)
    revision = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(revision, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    described = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit.strip(),
        "flags": f"`{shlex.join(options.flags)}`" if options.flags else "none",
        "labels": "yes" if options.labels else "no",
    }
    with PAGE.open("a", encoding="utf-8") as page:
        page.write(row(described, each))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
