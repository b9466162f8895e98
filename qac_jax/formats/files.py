"""Files as streams of lines: plain, .gz, .bz2 or .zst, strict UTF-8, in byte ranges.

A corpus of many files is cut into shards: lists of `Piece`s, byte ranges that begin and end
anywhere. A line belongs to the piece that holds its first byte, so the union of all shards is
the corpus, whatever their number. Compressed files are not cut.
"""

from __future__ import annotations

import bz2
import contextlib
import glob
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

import zstandard

from qac_jax import artifacts
from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, Place


COMPRESSED = (".gz", ".bz2", ".zst")

_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
# Text packs to about a quarter: what compressed files weigh when work is shared out.
_UNPACKED = 4
# Of JSON, unless its backslash is itself escaped.
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_BOM = b"\xef\xbb\xbf"
# The longest line that is read, in bytes: few packed bytes may stand for gigabytes in one line.
LONGEST_LINE = "QAC_LONGEST_LINE"
_LONGEST_LINE = 64 << 20
# A file that is read whole may be longer by this factor.
_WHOLE = 4
_BLOCK = 1 << 20


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


def expand(path: str | os.PathLike[str], suffixes: Sequence[str] = ()) -> list[str]:
    """The files meant by a file, a folder, a pattern, or several of them joined by commas.

    In folders only names that end in one of `suffixes` (compressed or not) are taken.
    """
    files: list[str] = []
    whole = os.fspath(path)
    for part in [whole] if os.path.exists(whole) else whole.split(","):
        part = os.path.expanduser(part.strip())
        if os.path.isdir(part):
            names = sorted(os.listdir(part))
            fitting = [n for n in names if not suffixes or plain_name(n).endswith(tuple(suffixes))]
            # An artefact's own record is not one of its shards.
            fitting = [n for n in fitting if not n.startswith(".") and n != artifacts.COMMIT]
            inside = [os.path.join(part, n) for n in fitting]
            files += [p for p in inside if os.path.isfile(p)]
            if not inside:
                wanted = " or ".join(f"*{s}" for s in suffixes) or "files"
                raise UserError(f"the folder {part} holds no {wanted}; check the path")
        elif os.path.exists(part):
            files.append(part)
        elif matches := sorted(p for p in glob.glob(part) if os.path.isfile(p)):
            files += matches
        else:
            raise UserError(f"{part} does not exist; expected a file, a folder or a pattern")
    return files


def plain_name(path: str) -> str:
    """The name without .gz, .bz2 or .zst."""
    stem, extension = os.path.splitext(path)
    return stem if extension in COMPRESSED else path


def find(folder: str, *names: str) -> str | None:
    """The first of these files (or a compressed form of it) that is in the folder."""
    for name in names:
        for extension in ("", *COMPRESSED):
            path = os.path.join(folder, name + extension)
            if os.path.exists(path):
                return path
    return None


def compression(path: str) -> str:
    """.gz, .bz2, .zst or nothing, by the first bytes: the name may be wrong."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path} is not a file; expected one that can be read again")
    with open(path, "rb") as file:
        head = file.read(4)
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """The unpacked bytes of a file; damage in the packing is a DataError."""
    packing = compression(path)
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(path, "rb", buffering=1 << 20))
            if packing == ".gz":
                file = cast(Any, stack.enter_context(gzip.GzipFile(fileobj=file)))
            elif packing == ".bz2":
                file = cast(Any, stack.enter_context(bz2.BZ2File(file)))
            elif packing == ".zst":
                reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
                file = io.BufferedReader(cast(Any, reader), 1 << 20)
            _refuse_archives(path, cast(Any, file).peek(512))
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno is not None or not packing:
            raise
        raise _damaged(path, error) from error


def longest_line() -> int:
    """The bytes that a line may have: 64 MB, or what QAC_LONGEST_LINE says."""
    text = os.environ.get(LONGEST_LINE, "") or str(_LONGEST_LINE)
    if not text.isdigit() or not int(text):
        raise UserError(f"{LONGEST_LINE}={text!r} is not a number of bytes; unset it, or give one")
    return int(text)


def too_long(path: str, limit: int, line: int | None = None, what: str = "a line") -> DataError:
    return DataError(
        f"{what} of more than {limit:,} bytes; cut it, or allow more with {LONGEST_LINE}=BYTES",
        file=path,
        line=line,
    )


def whole_text(path: str) -> str:
    """The whole of a small file; broken UTF-8 is a DataError with its line."""
    limit = _WHOLE * longest_line()
    with open_bytes(path) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise too_long(path, limit, what="a file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8: byte 0x{raw[error.start]:02x}"
        raise DataError(message, file=path, line=line) from error


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
            bad.keep("lines with NUL characters, read as blanks")
        if text.strip("\r\n "):
            yield Line(text.removesuffix("\n").removesuffix("\r"), place, offset)


def raw_lines(piece: Piece) -> Iterator[tuple[bytes, int, int]]:
    """(bytes, number from the piece's beginning, offset) of the lines that begin in it."""
    limit = longest_line()
    with open_bytes(piece.file) as file:
        position, number = piece.start, 0
        if piece.start:
            # One byte back: when it ends a line, the piece begins with a whole one.
            file.seek(piece.start - 1)
            skipped = file.readline(limit + 1)
            if len(skipped) > limit:
                raise too_long(piece.file, limit)
            position += len(skipped) - 1
            number = 1 if len(skipped) > 1 else 0
        while piece.stop is None or position < piece.stop:
            raw = file.readline(limit + 1)
            if not raw:
                return
            number += 1
            if len(raw) > limit:
                raise too_long(piece.file, limit, number if not piece.start else None)
            start, position = position, position + len(raw)
            yield (raw[len(_BOM) :] if start == 0 and raw.startswith(_BOM) else raw), number, start


def bare_lines(file: IO[bytes], path: str) -> Iterator[bytes]:
    """All lines without their newline, faster than one by one."""
    limit = longest_line()
    held: list[bytes] = []
    length = number = 0
    while block := file.read(_BLOCK):
        first, *lines = block.split(b"\n")
        held.append(first)
        length += len(first)
        if length > limit:
            raise too_long(path, limit, number + 1)
        if lines:
            *whole, last = lines
            yield b"".join(held)
            yield from whole
            number += 1 + len(whole)
            held, length = [last], len(last)
    if length:
        yield b"".join(held)


def line_before(path: str, offset: int) -> bytes:
    """The line that ends at or before byte `offset` of a plain file (empty at its beginning)."""
    with open(path, "rb") as file:
        tail, position = b"", offset
        while position > 0 and tail.rstrip(b"\r\n").rfind(b"\n") < 0:
            step = min(position, 1 << 16)
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
    return tail.rstrip(b"\r\n").rsplit(b"\n", 1)[-1]


def share_out(files: Sequence[str], count: int, *, cut: bool = True) -> list[tuple[Piece, ...]]:
    """At most `count` shards of nearly equal size, in the order of the files; none is empty."""
    if count > 99_999:  # five digits in their names
        raise UserError(
            f"shards = {count} is not a number of files; give 1 to 99,999 (0: as needed)"
        )
    sizes, splittable = [], []
    for path in files:
        packed = bool(compression(path))
        sizes.append(os.path.getsize(path) * (_UNPACKED if packed else 1))
        splittable.append(cut and not packed)
    total = sum(sizes)
    shards: list[list[Piece]] = [[] for _ in range(max(1, count))]
    bounds = [total * i // len(shards) for i in range(len(shards) + 1)]
    begin, shard = 0, 0
    for path, size, may_cut in zip(files, sizes, splittable, strict=True):
        if size == 0:
            continue
        # A file that stays whole goes where its middle lies.
        while bounds[shard + 1] <= (begin if may_cut else begin + size / 2):
            shard += 1
        if not may_cut:
            shards[shard].append(Piece(path))
        else:
            last = shard
            while bounds[last + 1] < begin + size:
                last += 1
            for i in range(shard, last + 1):
                low, high = max(bounds[i], begin) - begin, min(bounds[i + 1], begin + size) - begin
                if low < high:
                    shards[i].append(Piece(path, low, None if high == size else high))
        begin += size
    return [tuple(pieces) for pieces in shards if pieces]


def total_size(files: Sequence[str]) -> int:
    """Bytes of text, about: compressed files are counted at four times their size."""
    return sum(os.path.getsize(f) * (_UNPACKED if compression(f) else 1) for f in files)


def _refuse_archives(path: str, head: bytes) -> None:
    """MS MARCO and others come as archives, which are refused by name."""
    if head[257:262] == b"ustar":
        kind = "a tar archive; unpack it and give the files inside"
    elif head.startswith(b"PK\x03\x04"):
        kind = "a zip archive; unpack it and give the files inside"
    elif head.startswith(b"PAR1"):
        kind = "a parquet file; read it through --format hf, or turn it into JSON lines"
    else:
        return
    raise DataError(kind, file=path)


def _damaged(path: str, error: Exception) -> DataError:
    return DataError(f"the compressed data is damaged ({error}); fetch the file again", file=path)
