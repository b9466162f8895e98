"""What ScaNN and FAISS keep in memory, planned before anything is built; light to import.

The factors are measured (docs/results/search.md): resident bytes by those of a row in each form.
"""

from __future__ import annotations

from qac_jax.errors import UserError


# Vectors of a part where nobody says how many: 5 million of 768 dimensions build in 54 GB.
PART_ROWS = 5_000_000

# The libraries, by the method of an index.
NAMES = {"scann": "ScaNN", "faiss": "FAISS"}

_FLOAT = 4
# Bytes of a dimension in the vectors that candidates are rescored with.
_STORED = {"float32": 4, "bfloat16": 2, "int8": 1}
# While a part is built: copies of its vectors in float32 (ours and the library's) and what it
# makes, and copies of the sample that its centres are learned on.
_COPIES = {"scann": 3.4, "faiss": 2.4}
_SAMPLE, _SAMPLE_COPIES = 100_000, 5.0
_SEARCHED = 1.3
_PROCESS = 0.5e9


def part_rows(total: int, most: int = 0) -> list[tuple[int, int]]:
    """(start, stop) of parts of nearly equal size with at most `most` rows (0: PART_ROWS)."""
    count = max(1, -(-total // (most or PART_ROWS)))
    bounds = [total * n // count for n in range(count + 1)]
    return list(zip(bounds, bounds[1:], strict=False))


def build_bytes(rows: int, width: int, reordering: str = "float32", method: str = "scann") -> float:
    """Peak resident memory of building one part."""
    del reordering  # what is stored comes last, and is never more than what was freed for it
    copied = _COPIES[method] * rows + _SAMPLE_COPIES * min(rows, _SAMPLE)
    return _PROCESS + _FLOAT * width * copied


def search_bytes(rows: int, width: int, reordering: str = "float32") -> float:
    """Resident memory of searching all parts."""
    return _PROCESS + _SEARCHED * stored_bytes(rows, width, reordering)


def stored_bytes(rows: int, width: int, reordering: str = "float32") -> float:
    """Bytes of the index on the disk: vectors, and half a byte for two dimensions."""
    return rows * (_STORED[reordering] * width + width / 4)


def refuse_too_large(rows: int, width: int, reordering: str, method: str = "scann") -> None:
    """Raises where a part cannot be built in the memory that is free, with a size that can."""
    import psutil  # which a machine that runs a bundle need not have

    free = psutil.virtual_memory().available
    needed = build_bytes(rows, width, reordering, method)
    if needed <= free:
        return
    fitting = int(rows * max(free - _PROCESS, 0) / (needed - _PROCESS) * 0.9)
    advice = f"give --part_rows {fitting}" if fitting > 1000 else "use a machine with more of it"
    raise UserError(
        f"building {NAMES[method]}'s index of {rows:,} vectors of {width} takes about "
        f"{needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} are free; {advice}, or --method "
        "exact, which reads the vectors from the disk"
    )
