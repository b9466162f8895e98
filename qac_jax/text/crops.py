"""Random pieces of a text, counted in words or tokens: AugTriever's crops (Meng et al., 2022)."""

import numpy as np


def below(rng: np.random.Generator, n: int) -> int:
    """A uniform integer in [0, n); much cheaper than `rng.integers`."""
    return int(rng.random() * n)


def window(n: int, size: int, rng: np.random.Generator) -> tuple[int, int]:
    """`size` consecutive words of n at a random place; all n where there are no more."""
    if n <= size:
        return 0, n
    start = below(rng, n - size + 1)
    return start, start + size


def crop(
    n: int, rng: np.random.Generator, *, low: float = 0.05, high: float = 0.5, least: int = 4
) -> tuple[int, int]:
    """RandomCrop: between `low` and `high` of n words, at least `least` (or all n)."""
    shortest = max(least, int(low * n))
    longest = max(shortest, int(high * n))
    return window(n, shortest + below(rng, longest - shortest + 1), rng)


def survivors(n: int, rng: np.random.Generator, *, delete: float = 0.1) -> np.ndarray:
    """Which of n words are left when each is deleted with a probability; one always stays."""
    kept = rng.random(n) >= delete
    if n and not kept.any():
        kept[below(rng, n)] = True
    return kept


def chunks(
    n: int, rng: np.random.Generator, *, count: int = 16, shortest: int = 4, longest: int = 16
) -> list[tuple[int, int]]:
    """QExt's candidates: crops of `shortest` to `longest` words; they may overlap or repeat."""
    sizes = (shortest + below(rng, longest - shortest + 1) for _ in range(count))
    return [window(n, size, rng) for size in sizes]
