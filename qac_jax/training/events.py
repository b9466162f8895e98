"""TensorBoard's event files: scalars, written without TensorBoard or TensorFlow.

A file is a sequence of TFRecords, each an `Event` of tensorflow/core/util/event.proto in protobuf's
wire format; the few fields that scalars need are encoded here.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Self

from etils import epath


# Wire types of protobuf.
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
# Fields of Event, Summary, Summary.Value and SessionLog.
_WALL_TIME, _STEP, _VERSION, _SUMMARY, _SESSION = 1, 2, 3, 5, 7
_VALUE = 1
_TAG, _SIMPLE_VALUE = 1, 2
_STATUS, _START = 1, 1


class EventFile:
    """A new event file in a folder; TensorBoard shows the files of a folder as one run.

    Where a run continues, what earlier files have from its first step on is hidden.
    """

    def __init__(self, folder: epath.PathLike):
        folder = epath.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        seconds = time.time()
        name = f"events.out.tfevents.{seconds:017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._file = self.path.open("wb")
        self._begun = False
        self._write(_bytes(_VERSION, b"brain.Event:2"), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        if not self._begun:
            # TensorBoard forgets steps of an earlier session from this one on.
            self._write(_bytes(_SESSION, _varint_field(_STATUS, _START)), step)
            self._begun = True
        values = (
            _bytes(_TAG, name.encode()) + _key(_SIMPLE_VALUE, _FLOAT) + struct.pack("<f", value)
            for name, value in figures.items()
        )
        self._write(_bytes(_SUMMARY, b"".join(_bytes(_VALUE, value) for value in values)), step)

    def close(self) -> None:
        self._file.close()

    def _write(self, content: bytes, step: int) -> None:
        when = _key(_WALL_TIME, _DOUBLE) + struct.pack("<d", time.time())
        self._file.write(framed(when + _varint_field(_STEP, step) + content))
        self._file.flush()


def framed(record: bytes) -> bytes:
    """A TFRecord: length, its checksum, the record, its checksum."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (length, struct.pack("<I", masked(length)), record, struct.pack("<I", masked(record)))
    )


def masked(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C, rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli; RFC 3720, appendix B.4)."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value

    return tuple(map(entry, range(256)))


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint_field(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value
