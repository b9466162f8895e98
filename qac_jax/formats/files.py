"""Files as streams of lines and records: plain, .gz, .bz2, .zst, or tables (Parquet, Lance), strict
UTF-8, in byte ranges. A table is read as JSON lines, packed: an object for each row.

A corpus of many files is cut into shards: lists of `Piece`s, byte ranges that begin and end
anywhere. A line belongs to the piece that holds its first byte, so the union of all shards is
the corpus, whatever their number. Compressed files are not cut.
"""

import bz2
import contextlib
import csv
import glob
import gzip
import io
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeVar

from qac_jax import artifacts, extras
from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place


PARQUET, LANCE = TABLES = (".parquet", ".lance")
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst", b"PAR1": PARQUET}
COMPRESSED = tuple(_MAGIC.values())
_UNPACKERS: dict[str, Callable[[Any], Any]] = {
    "": lambda file: file,
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".zst": lambda file: _unpacked_zst(file),
    PARQUET: lambda file: _unpacked_table(file, _parquet),
    LANCE: lambda folder: _unpacked_table(folder, _lance),
}
# One shard's share of text when their number is not set. It depends on the data only, never on
# the machine, so that the same corpus always gives the same files.
SHARD_BYTES = 64 << 20
# Text packs to about a quarter: what compressed files weigh when work is shared out.
_UNPACKED = 4
# Of JSON, unless its backslash is itself escaped.
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BOM = b"\xef\xbb\xbf"
# The longest line or record that is read, in bytes: parsed JSON takes up to 24 times its length.
LONGEST_LINE = 16 << 20
# The longest file that is read whole.
LONGEST_FILE = 256 << 20
# How many times larger than a packed file its content may be, unless it is small.
_EXPANSION, _SMALL = 100, 16 << 20

# Rows of a table that are in memory together.
_ROWS = 1 << 10

T = TypeVar("T")


class Piece(NamedTuple):
    """Bytes start to stop - 1 of a file (None: to its end)."""

    file: str
    start: int = 0
    stop: int | None = None


class Line(NamedTuple):
    """A line without its end, where it stands, and its first byte's offset (unpacked)."""

    text: str
    place: Place
    offset: int

    @property
    def made_id(self) -> str:
        """An id for a record without one: file and byte, so the same in however many shards."""
        return f"{os.path.basename(plain_name(self.place.file))}@{self.offset}"


def expand(path: str | os.PathLike[str], suffixes: Sequence[str] = ()) -> list[str]:
    """The files of a file, a folder (those with a suffix), a pattern, or several by commas."""
    files: list[str] = []
    whole = os.fspath(path)
    for part in [whole] if os.path.exists(whole) else whole.split(","):
        part = os.path.expanduser(part.strip())
        if os.path.isdir(part) and not is_file(part):
            names = sorted(os.listdir(part))
            fitting = [n for n in names if not suffixes or plain_name(n).endswith(tuple(suffixes))]
            # An artefact's own record is not one of its shards.
            fitting = [n for n in fitting if not n.startswith(".") and n != artifacts.COMMIT]
            inside = [os.path.join(part, n) for n in fitting]
            files += filter(is_file, inside)
            if not inside:
                wanted = " or ".join(f"*{s}" for s in suffixes) or "files"
                raise UserError(f"the folder {part} holds no {wanted}; others: --format folder")
        elif os.path.exists(part):
            files.append(part)
        elif matches := sorted(filter(is_file, glob.glob(part))):
            files += matches
        else:
            raise UserError(f"{part} does not exist; expected a file, a folder or a pattern")
    return files


def is_file(path: str) -> bool:
    """Whether it is read as one file, as Lance's folders are."""
    return os.path.isfile(path) or path.endswith(LANCE) and os.path.isdir(path)


def plain_name(path: str) -> str:
    """The name without .gz, .bz2 or .zst; .jsonl for tables."""
    stem, extension = os.path.splitext(path)
    if extension in TABLES:
        return f"{stem.removesuffix('.jsonl')}.jsonl"
    return stem if extension in COMPRESSED else path


def find(folder: str, *names: str) -> str | None:
    """The first of these files (or a compressed form of it) that is in the folder."""
    forms = (n + extension for n in names for extension in ("", *COMPRESSED))
    tables = (os.path.splitext(n)[0] + extension for n in names for extension in TABLES)
    paths = (os.path.join(folder, n) for n in (*forms, *tables))
    return next(filter(os.path.exists, paths), None)


def compression(path: str) -> str:
    """.lance, or by the first bytes, since the name may be wrong, .gz, .bz2, .zst, .parquet or
    nothing."""
    if os.path.isdir(path) and is_file(path):
        return LANCE
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path} is not a file; expected one that can be read again")
    with open(path, "rb") as file:
        head = file.read(4)
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


class _Unpacked(io.RawIOBase):
    """The content of a packed file, which may not be many times as large."""

    def __init__(self, inner: IO[bytes], path: str):
        self._inner, self._path = inner, path
        self._left = max(_SMALL, _EXPANSION * os.path.getsize(path))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._inner.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        raw = self._inner.read(min(len(buffer), 1 << 20))
        self._left -= len(raw)
        if self._left < 0:
            said = f"it unpacks to more than {_EXPANSION} times its size"
            raise DataError(f"{said}; if you trust it, give it unpacked", file=self._path)
        buffer[: len(raw)] = raw
        return len(raw)


def _damage() -> tuple[Any, ...]:
    """What libraries raise for a damaged file, of those that are loaded."""
    known = (("zstandard", "ZstdError"), ("pyarrow", "ArrowException"))
    return tuple(getattr(sys.modules.get(module), name, OSError) for module, name in known)


def _unpacked_zst(file: Any) -> Any:
    unpacker = extras.load("zstandard", "zst", "reading .zst").ZstdDecompressor()
    return io.BufferedReader(unpacker.stream_reader(file, read_across_frames=True), 1 << 20)


class _JsonLines(io.RawIOBase):
    """Rows as a file of JSON lines."""

    def __init__(self, rows: Iterator[Mapping[str, Any]]):
        self._lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and (line := next(self._lines, None)):
            self._rest = line.encode(errors="replace")
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def _parquet(file: Any) -> Iterator[Any]:
    parquet = extras.load("pyarrow.parquet", "parquet", "reading Parquet")
    yield from parquet.ParquetFile(file).iter_batches(_ROWS)


def _lance(folder: str) -> Iterator[Any]:
    lance = extras.load("lance", "lance", "reading Lance")
    try:
        yield from lance.dataset(folder).to_batches(batch_size=_ROWS)
    except ValueError as error:  # no table is there
        raise OSError(str(error)) from error


def _unpacked_table(file: Any, blocks: Callable[[Any], Iterator[Any]]) -> Any:
    rows = (row for block in blocks(file) for row in block.to_pylist())
    return io.BufferedReader(_JsonLines(rows), 1 << 20)


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """The unpacked bytes of a file; damage in the packing is a DataError."""
    packing = compression(path)
    try:
        if packing == LANCE:
            yield _UNPACKERS[packing](path)
            return
        with open(path, "rb", buffering=1 << 20) as file, _UNPACKERS[packing](file) as unpacked:
            yield io.BufferedReader(_Unpacked(unpacked, path), 1 << 20) if packing else unpacked
    except (EOFError, OSError, zlib.error, *_damage()) as error:
        if not packing or getattr(error, "errno", None) is not None:
            raise
        raise DataError(f"the compressed data is damaged ({error})", file=path) from error


def whole_text(path: str) -> str:
    """The whole of a small file; broken UTF-8 is a DataError with its line."""
    with open_bytes(path) as file:
        raw = file.read(LONGEST_FILE + 1)
    if len(raw) > LONGEST_FILE:
        raise DataError(f"a file of more than {LONGEST_FILE:,} bytes; divide it", file=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8: byte 0x{raw[error.start]:02x}"
        raise DataError(message, file=path, line=line) from error


def raw_lines(piece: Piece) -> Iterator[tuple[bytes, int, int]]:
    """(bytes, number from the piece's beginning, offset) of the lines that begin in it."""
    limit = LONGEST_LINE
    with open_bytes(piece.file) as file:
        position, number = piece.start, 0
        if piece.start:
            # One byte back: when it ends a line, the piece begins with a whole one.
            file.seek(piece.start - 1)
            skipped = file.readline(limit + 1)
            position += len(skipped) - 1
            number = 1 if len(skipped) > 1 else 0
        while (piece.stop is None or position < piece.stop) and (raw := file.readline(limit + 1)):
            number += 1
            if len(raw) > limit:
                line = number if not piece.start else None
                message = f"a line of more than {limit:,} bytes; divide its text"
                raise DataError(message, file=piece.file, line=line)
            start, position = position, position + len(raw)
            yield raw.removeprefix(_BOM) if start == 0 else raw, number, start


def text_lines(piece: Piece, bad: BadLines) -> Iterator[Line]:
    """The lines that begin in a piece; blank ones are left out, broken UTF-8 is a bad record, NUL
    characters are read as blanks and counted."""
    for raw, number, offset in raw_lines(piece):
        place = Place(piece.file, number, piece.start)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            bad.add(f"not UTF-8: byte 0x{raw[error.start]:02x} at column {error.start + 1}", place)
            continue
        if "\0" in text or (text.startswith("{") and "\\u0000" in text):
            text = _ESCAPED_NUL.sub(r"\1 ", text.replace("\0", " "))
            bad.kept["lines with NUL characters, read as blanks"] += 1
        if text.strip("\r\n "):
            yield Line(text.removesuffix("\n").removesuffix("\r"), place, offset)


def parsed(piece: Piece | str, bad: BadLines, parse: Callable[[Line], T | None]) -> Iterator[T]:
    """Each line of a piece or file as `parse` reads it (None: left out). A line for which it
    raises BadRecord goes to `bad`."""
    for line in text_lines(Piece(piece) if isinstance(piece, str) else piece, bad):
        try:
            found = parse(line)
        except BadRecord as error:
            bad.add(error, line.place)
            continue
        if found is not None:
            yield found


def line_before(path: str, offset: int) -> bytes:
    """The line that ends at or before byte `offset` of a plain file (empty at its beginning)."""
    with open(path, "rb") as file:
        tail, position = b"", offset
        while position > 0 and tail.rstrip(b"\r\n").rfind(b"\n") < 0:
            step = min(position, max(1 << 16, len(tail)))
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
    return tail.rstrip(b"\r\n").rsplit(b"\n", 1)[-1]


def _weight(path: str) -> int:
    """Bytes of text, about: compressed files are counted at four times their size."""
    return os.path.getsize(path) * (_UNPACKED if compression(path) else 1)


def share_out(
    files: Sequence[str], count: int | None, *, cut: bool = True
) -> list[tuple[Piece, ...]]:
    """At most `count` shards of nearly equal size (None: one for every 64 MB), in the order of the
    files; none is empty."""
    total = sum(map(_weight, files))
    count = count or max(1, math.ceil(total / SHARD_BYTES))
    if count > 99_999:  # five digits in their names
        raise UserError(f"{count} shards; give 1 to 99,999 (0: as needed)")
    shards: list[list[Piece]] = [[] for _ in range(count)]
    begin = 0
    for path in files:
        size = _weight(path)
        if cut and not compression(path):
            # The shards whose ranges of the corpus meet this file's.
            for number in range(begin * count // total if total else 0, count):
                low = max(total * number // count - begin, 0)
                high = min(total * (number + 1) // count - begin, size)
                if low < high:
                    shards[number].append(Piece(path, low, None if high == size else high))
                if high == size:
                    break
        elif size:  # a file that stays whole goes where its middle lies
            shards[min(count - 1, int((begin + size / 2) * count / total))].append(Piece(path))
        begin += size
    return [tuple(pieces) for pieces in shards if pieces]


# What lines hold: columns, or a JSON object.


def columns(text: str, names: Sequence[str]) -> list[str]:
    """The fields of a tab-separated line."""
    fields = text.split("\t")
    if len(fields) != len(names):
        raise BadRecord(f"{len(fields)} columns; expected {len(names)}: {', '.join(names)}")
    return fields


def quoted_columns(text: str, names: Sequence[str]) -> list[str]:
    """The same for files written by Python's csv module: quotes around fields that hold quotes."""
    if '"' not in text:
        return columns(text, names)
    csv.field_size_limit(1 << 30)
    try:
        fields = next(csv.reader([text], delimiter="\t", strict=True))
    except csv.Error as error:
        raise BadRecord(f"wrongly quoted: {error}") from None
    return columns("\t".join(field.replace("\t", " ") for field in fields), names)


def _no_number(text: str) -> float:
    raise BadRecord(f"{text} is not a number in JSON; write null where there is none")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadRecord(f"the number {text[:40]} is too large")
    return number


# NaN, Infinity and 1e999 could not be written again.
_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def json_object(text: str) -> dict[str, Any]:
    try:
        value = _DECODER.decode(text)
    except ValueError as error:
        raise BadRecord(f"invalid JSON: {error}") from None
    except RecursionError:
        raise BadRecord("invalid JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise BadRecord(f"a JSON {type(value).__name__}; expected an object {{…}} on each line")
    # Escapes can spell halves of surrogate pairs, which no UTF-8 file can hold.
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise BadRecord(f"half a surrogate pair (\\u{half:04x}) in a JSON string") from None
    return value


def string(record: Mapping[str, Any], *keys: str, what: str = "") -> str:
    """The first of these keys as text; numbers are spelled out (ids often are)."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise BadRecord(f"{key!r} is a {type(value).__name__}; expected text")
    if what:
        raise BadRecord(f"no {what}: expected the key {' or '.join(map(repr, keys))}")
    return ""


_CHUNK = 1 << 16
_VALUE = re.compile(r"[^\s,]")


def _values(file: str) -> Iterator[Any]:
    """The values of a JSON array of any length. Damaged JSON cannot be skipped, because nothing
    says where the next value begins.
    """
    scan = json.JSONDecoder().raw_decode
    number, found = 0, None
    with open_bytes(file) as stream:
        reader = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        try:
            text = reader.read(_CHUNK).lstrip()
            if not text.startswith("["):
                raise DataError("not a JSON array; expected [", file=file)
            position = 1
            while True:
                if found := _VALUE.search(text, position):
                    position = found.start()
                    if text[position] == "]":
                        return
                try:
                    value, position = scan(text, position)
                except (ValueError, RecursionError):  # perhaps the rest of it is in the next chunk
                    text, position = text[position:], 0
                    more = reader.read(max(_CHUNK, len(text)))
                    # A longer value is taken for damage: the bracket that closes it is missing.
                    if not more or len(text) > LONGEST_LINE:
                        raise
                    text += more
                    continue
                yield value
                number += 1
        except (ValueError, RecursionError) as error:
            failure = str(error) if found else "the array has no end"
            raise DataError(f"invalid JSON in entry {number}: {failure}", file=file) from error


def parsed_objects(
    file: str, bad: BadLines, parse: Callable[[int, dict[str, Any]], T | None]
) -> Iterator[T]:
    """Each object of a JSON array as `parse` reads it (None: left out), numbered from 0."""
    for number, record in enumerate(_values(file)):
        try:
            if not isinstance(record, dict):
                raise BadRecord(f"a JSON {type(record).__name__}, not an object")
            found = parse(number, record)
        except BadRecord as error:
            bad.add(f"entry {number}: {error}", Place(file))
            continue
        if found is not None:
            yield found
