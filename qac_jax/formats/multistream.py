"""Wikipedia's multistream dumps: bz2 streams of 100 pages each, and an index of where they begin.

    enwiki-20240101-pages-articles-multistream.xml.bz2        streams, each a bz2 file of its own
    enwiki-20240101-pages-articles-multistream-index.txt.bz2  offset:page id:title of every page

The first stream holds the head of the XML (<siteinfo>), the last one its end. With its index
beside it a dump is cut between streams, so many processes read one file, and a shard that is
interrupted is all that is read again.
"""

from __future__ import annotations

import bz2
import os
import re
from collections.abc import Iterator, Sequence

from qac_jax.errors import DataError
from qac_jax.formats.files import COMPRESSED, Piece, compression, open_bytes, raw_lines


END = b"</mediawiki>"

_NAME = re.compile(r"(.+)-multistream(\d*)\.xml(-p\d+p\d+)?\.bz2")
# Text packs to about a quarter.
_UNPACKED = 4
_BLOCK = 1 << 18


def index_of(path: str) -> str | None:
    """The index that stands beside a multistream dump, or None."""
    folder, name = os.path.split(path)
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    stem = f"{match[1]}-multistream-index{match[2]}.txt{match[3] or ''}"
    for extension in ("", *COMPRESSED):
        candidate = os.path.join(folder, stem + extension)
        if os.path.isfile(candidate):
            return candidate
    return None


def offsets(index: str, size: int) -> list[int]:
    """Where the streams of pages begin, ascending, in a dump of `size` bytes."""
    found: list[int] = []
    for line, number, _ in raw_lines(Piece(index)):
        if not line.strip():
            continue
        offset, colon, _ = line.partition(b":")
        if not colon or not offset.isdigit():
            raise DataError(
                "expected offset:page id:title; fetch the index again", file=index, line=number
            )
        place = int(offset)
        if found and place < found[-1] or place >= size:
            raise DataError(
                f"the stream at byte {place} is not in order or beyond the end of the dump, which "
                f"has {size} bytes; fetch the dump and its index again",
                file=index,
                line=number,
            )
        if not found or place > found[-1]:
            found.append(place)
    return found


def share_out(files: Sequence[str], count: int) -> list[tuple[Piece, ...]]:
    """At most `count` shards of nearly equal size; dumps with an index are cut between streams."""
    units: list[tuple[Piece, int]] = []
    for file in files:
        size = os.path.getsize(file)
        weight = _UNPACKED if compression(file) else 1
        index = index_of(file)
        # The head goes with the first stream of pages.
        bounds = [0, *(offsets(index, size)[1:] if index else ()), size]
        units += [
            (Piece(file, start, stop), weight * (stop - start))
            for start, stop in zip(bounds, bounds[1:], strict=False)
            if start < stop
        ]
    total = sum(size for _, size in units)
    shards: list[list[Piece]] = [[] for _ in range(max(1, count))]
    before = 0
    for piece, size in units:
        # A stream goes where its middle lies.
        shard = shards[min(len(shards) - 1, int((before + size / 2) * len(shards) / total))]
        if shard and shard[-1].file == piece.file and shard[-1].stop == piece.start:
            piece = Piece(piece.file, shard.pop().start, piece.stop)
        shard.append(piece)
        before += size
    return [tuple(map(_open_ended, shard)) for shard in shards if shard]


def _open_ended(piece: Piece) -> Piece:
    return piece._replace(stop=None) if piece.stop == os.path.getsize(piece.file) else piece


def head(path: str) -> bytes:
    """The XML of a dump's first stream, what stands before all pages."""
    return b"".join(_streams(Piece(path), most=1))


def blocks(piece: Piece) -> Iterator[bytes]:
    """The XML of a piece, without the head and the end that it lacks."""
    if piece.start == 0 and piece.stop is None:
        with open_bytes(piece.file) as file:
            while block := file.read(_BLOCK):
                yield block
    else:
        yield from _streams(piece)


def _streams(piece: Piece, most: int | None = None) -> Iterator[bytes]:
    """The contents of a piece's bz2 streams, at most the first `most` of them."""
    with open(piece.file, "rb") as file:
        file.seek(piece.start)
        left = piece.stop - piece.start if piece.stop is not None else None
        reader, begun, ended = bz2.BZ2Decompressor(), False, 0
        while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
            left = None if left is None else left - len(block)
            while block or begun and not reader.needs_input:
                begun = True
                try:
                    yield reader.decompress(block, _BLOCK)
                except OSError as error:
                    raise _damaged(piece, str(error)) from error
                block = b""
                if reader.eof:
                    block, reader, begun = reader.unused_data, bz2.BZ2Decompressor(), False
                    ended += 1
                    if ended == most:
                        return
    if begun or left:
        raise _damaged(piece, "a stream ends early")


def _damaged(piece: Piece, why: str) -> DataError:
    return DataError(
        f"the bz2 streams from byte {piece.start} on are damaged, or its index is of another dump "
        f"({why}); fetch both again",
        file=piece.file,
    )
