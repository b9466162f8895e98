"""Queries to vectors in few shapes, all of them compiled beforehand.

XLA compiles a program for every shape, which takes about a second: a server must not do so while
others wait. On a CPU the time of a batch grows with its tokens, so that the padding of queries,
which differ in length, would cost as much as they do: there the layers compute the queries one
after the other in a row (`models/packing.py`), and a shape is the room of that row. Elsewhere the
queries are padded to few lengths and numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from qac_jax.inference.buckets import Batch, padded
from qac_jax.inference.encoder import Encoder


# What a single query, or with padding every query of a batch, is padded to.
_LENGTHS = (16, 24, 32, 64)
# In a row: how many queries it may hold, of at most how many tokens each, and its room. A row of
# more tokens than these is not faster a token.
_COUNTS, _LONGEST = (4, 8, 16), (32, 64)
_ROOMS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
# Of long queries, and before the server answers, the rooms that are multiples of this.
_COARSE = 64


class Shape(NamedTuple):
    """A compiled program: `size` queries of at most `length` tokens, `room` tokens together."""

    size: int
    length: int
    room: int

    @property
    def packed(self) -> bool:
        """Whether it leaves padding out."""
        return self.room < self.size * self.length


def padded_shapes(devices: int, most: int, limit: int) -> list[Shape]:
    """Those with padding, for up to `most` queries of `limit` tokens, the short ones first."""
    sizes = [devices]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    lengths = sorted({min(length, limit) for length in _LENGTHS})
    return [Shape(size, length, size * length) for length in lengths for size in sizes]


def packed_shapes(most: int, limit: int) -> list[Shape]:
    """Those without, for groups of up to `most` queries."""
    shapes = padded_shapes(1, 1, limit)
    for longest in sorted({min(length, limit) for length in _LONGEST}):
        for size in _COUNTS if most > 1 else ():
            rooms = {room for room in _ROOMS if 8 * size <= room < size * longest}
            rooms.add(min(_ROOMS[-1], size * longest))
            coarse = longest > _LONGEST[0]
            shapes += [
                Shape(size, longest, room)
                for room in sorted(rooms)
                if not coarse or room % _COARSE == 0 or room == max(rooms)
            ]
            if size >= most:
                break
    return shapes


class QueryEncoder:
    """An encoder whose queries are read in few shapes."""

    def __init__(self, encoder: Encoder, most: int):
        self._encoder = encoder
        devices, limit = encoder.runner.mesh.size, encoder.limits["query"]
        self._packs = devices == 1 and jax.default_backend() == "cpu"
        make = packed_shapes(most, limit) if self._packs else padded_shapes(devices, most, limit)
        self._shapes: Sequence[Shape] = make
        self._most, self._longest, self._room = map(max, zip(*self._shapes, strict=True))
        # The first of them before the server answers, the others while it does.
        self._ready = [
            shape
            for shape in self._shapes
            if shape.length <= _LONGEST[0] and (not shape.packed or shape.room % _COARSE == 0)
        ]

    def encode(self, texts: Sequence[str], side: str = "passage") -> np.ndarray:
        """As of the encoder."""
        if side != "query":
            return self._encoder.encode(texts, side)
        rows = self._encoder.tokenize(texts, side)
        vectors = np.empty((len(rows), self._encoder.width), np.float32)
        short = [number for number, row in enumerate(rows) if len(row) <= self._longest]
        if len(short) < len(rows):
            long = sorted(set(range(len(rows))).difference(short))
            vectors[long] = self._encoder.encode_tokens([rows[number] for number in long], side)
        longest = max((len(rows[number]) for number in short), default=0)
        for group in self._groups(short, rows):
            part = [rows[number] for number in group]
            sizes = [len(row) for row in part]
            length = max(sizes) if self._packs else longest
            vectors[group] = self._computed(self._shape(len(part), length, sum(sizes)), part)
        return vectors

    def _groups(
        self, numbers: Sequence[int], rows: Sequence[Sequence[int]]
    ) -> Iterator[Sequence[int]]:
        """The numbers of texts in groups that each fit into a shape."""
        if not self._packs:
            yield from (numbers[at : at + self._most] for at in range(0, len(numbers), self._most))
            return
        group: list[int] = []
        tokens = 0
        for number in sorted(numbers, key=lambda number: -len(rows[number])):
            if len(group) == self._most or tokens + len(rows[number]) > self._room:
                yield group
                group, tokens = [], 0
            group.append(number)
            tokens += len(rows[number])
        if group:
            yield group

    def _shape(self, size: int, length: int, tokens: int) -> Shape:
        """The cheapest that these texts fit into; one that is compiled, if any of them is."""
        for shapes in (self._ready, self._shapes):
            fitting = [
                shape
                for shape in shapes
                if shape.size >= size
                and shape.length >= length
                and (shape.room >= tokens or not shape.packed)
            ]
            if fitting:
                return min(fitting, key=lambda shape: (shape.room, shape.size * shape.length))
        raise AssertionError

    def _computed(self, shape: Shape, rows: Sequence[Sequence[int]]) -> np.ndarray:
        batch = Batch(np.arange(len(rows)), shape.size, shape.length)
        ids, lengths = padded(rows, batch, self._encoder.tokenizer.pad_id)
        if not shape.packed:
            return np.asarray(self._encoder.apply(ids, lengths, "query"))[: len(rows)]
        lengths[len(rows) :] = 0
        return np.asarray(self._encoder.apply(ids, lengths, "query", shape.room))[: len(rows)]

    def warm(self) -> None:
        """Compiles the shapes of short queries, and in the background the others."""
        for shape in self._ready:
            self._computed(shape, [])
        threading.Thread(target=self._rest, daemon=True).start()

    def _rest(self) -> None:
        for shape in self._shapes:
            if shape not in self._ready:
                self._computed(shape, [])
                self._ready = [*self._ready, shape]
