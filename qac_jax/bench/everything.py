"""`qac bench all`: every benchmark with a peer, each in a process of its own, in one table."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from qac_jax import progress
from qac_jax.fields import option


_SMALL_MODEL = "--layers 2 --hidden 128 --vocabulary 2000 --repetitions 3"
_FEW_TEXTS = "--corpus gin --passages 8 --samples 2 --max_tokens 16 --repetitions 3"
_SMALL_INDEX = "--rows 20000 --queries 200 --repetitions 3"
# A row's benchmark with its flags, and more flags of `--quick`.
ROWS: Mapping[str, tuple[str, str]] = {
    "train": ("train --passage 128 --lengths full", _SMALL_MODEL),
    "cotmae": ("train --batch 16 --objective cotmae", _SMALL_MODEL),
    "cocondenser": ("train --batch 16 --objective cocondenser", _SMALL_MODEL),
    "cotmae_packed": ("train --batch 16 --objective cotmae --pack", _SMALL_MODEL),
    "cocondenser_packed": ("train --batch 16 --objective cocondenser --pack", _SMALL_MODEL),
    "encode": ("encode", "--corpus gin --passages 48 --repetitions 3"),
    "encode_int8": ("encode --precision int8", "--corpus gin --passages 48 --repetitions 3"),
    "generate": ("generate", _FEW_TEXTS),
    "generate_ctranslate2": ("generate --peer ctranslate2", _FEW_TEXTS),
    "generate_ctranslate2_int8": ("generate --peer ctranslate2_int8", _FEW_TEXTS),
    "scann": ("search", _SMALL_INDEX),
    "exact": ("search --system exact", _SMALL_INDEX),
    "bm25": ("bm25 --rows 100000", "--rows 12000 --queries 300 --repetitions 3"),
}


@dataclasses.dataclass(frozen=True)
class All:
    """Every benchmark that has a peer, each in a process of its own, and one table."""

    EXAMPLE = "qac bench all --quick"

    quick: bool = option(False, "small shapes: minutes instead of half an hour")
    only: tuple[str, ...] = option((), "rows to measure (default: all)", choices=tuple(ROWS))

    def run(self) -> dict[str, Any]:
        rows = []
        for number, name in enumerate(self.only or ROWS, 1):
            progress.say(f"bench all: {name} ({number}/{len(self.only or ROWS)})")
            rows.append({"name": name, **_measured(*ROWS[name], self.quick)})
            progress.say(_line(rows[-1]))
        return {"rows": rows}

    def shown(self, figures: Mapping[str, Any]) -> str:
        """The figures as a table."""
        lines = ["| benchmark | a second | ours | peer | ratio |", "|---|---|---|---|---|"]
        return "\n".join([*lines, *map(_line, figures["rows"])])


def _line(row: Mapping[str, Any]) -> str:
    if "not_measured" in row:
        return f"| {row['name']} | not measured: {row['not_measured']} | | | |"
    rates = " | ".join(f"{row[side]:,.4g}" for side in ("ours", "peer"))
    return f"| {row['name']} | {row['unit']} | {rates} | {row['ratio']:.2f} |"


def _measured(flags: str, small: str, quick: bool) -> dict[str, Any]:
    """A row's figures, or the reason why it was not measured."""
    words = [*flags.split(), *(small.split() if quick else ()), "--json"]
    command = [sys.executable, "-m", "qac_jax.cli", "bench", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        return {"not_measured": lines[-1]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    rate, ratio = found[f"qac_jax_{found['unit']}_per_second"], found["ratio"]
    return {"ours": rate, "peer": rate / ratio, "ratio": ratio, **found}
