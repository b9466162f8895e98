"""Randomness of text content: a separate stream for every (seed, epoch, example).

Philox is counter based: its key is (seed, example) and the epoch is in the high half of its
counter, so moving to another example takes a microsecond and does not depend on earlier ones.
"""

from typing import Any, Self

import numpy as np


_WORD = (1 << 64) - 1
_EVERY_EPOCH = _WORD
_ROUNDS = 6


class ExampleRng(np.random.Generator):
    """numpy's Generator at the start of the stream of one (seed, epoch, index)."""

    seed: int
    epoch: int
    index: int

    def __init__(self, seed: int = 0, epoch: int = 0, index: int = 0):
        philox = np.random.Philox(0)
        super().__init__(philox)
        self._philox = philox
        state: Any = philox.state
        self._state: Any = {**state, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
        self._key: np.ndarray = state["state"]["key"]
        self._counter: np.ndarray = state["state"]["counter"]
        self.seek(seed, epoch, index)

    def seek(self, seed: int, epoch: int, index: int) -> Self:
        self.seed, self.epoch, self.index = seed, epoch, index
        self._key[0] = seed & _WORD
        self._key[1] = index
        self._counter[2] = epoch
        self._philox.state = self._state
        return self

    def same_every_epoch(self) -> np.random.Generator:
        """Another stream of this (seed, index), the same in all epochs."""
        key = np.array([self.seed & _WORD, self.index], np.uint64)
        counter = np.array([0, 0, _EVERY_EPOCH, 0], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


def mix(values: np.ndarray) -> np.ndarray:
    """Spreads 64-bit integers evenly (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(
    positions: np.ndarray, n: int | np.ndarray, seed: int, epoch: int | np.ndarray
) -> np.ndarray:
    """Where a pseudo-random permutation of range(n) sends the positions; needs no memory.

    A Feistel network on the smallest even number of bits for n, applied until the result is below
    n. `n` and `epoch` may differ from position to position. Pass many positions at once: a call
    takes a millisecond, a position a quarter of a microsecond.
    """
    out = positions.astype(np.uint64)
    sizes = np.asarray(n, np.uint64)
    bits = np.ceil(np.log2(np.maximum(sizes, np.uint64(2)).astype(np.float64))).astype(np.uint64)
    shifts = (bits + np.uint64(1)) >> np.uint64(1)
    stream = np.uint64(seed * 0x9E3779B97F4A7C15 & _WORD)
    epochs = np.atleast_1d(np.asarray(epoch, np.uint64))
    keys = np.broadcast_to(mix(stream ^ mix(epochs + np.uint64(1))), out.shape)
    todo = np.arange(out.size)
    while todo.size:
        key = keys[todo]
        shift, size = (shifts[todo], sizes[todo]) if sizes.ndim else (shifts, sizes)
        low = (np.uint64(1) << shift) - np.uint64(1)
        left, right = out[todo] >> shift, out[todo] & low
        for number in range(_ROUNDS):
            scrambled = mix(right ^ mix(key + np.uint64(number)))
            left, right = right, (left ^ scrambled) & low
        out[todo] = (left << shift) | right
        todo = todo[out[todo] >= size]
    return out.astype(np.int64)
