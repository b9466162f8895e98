"""Records of WARC files (ISO 28500), one at a time: plain, or each packed by gzip.

WARC/1.0 CRLF  name: value CRLF …  CRLF  content of Content-Length bytes  CRLF CRLF
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import IO, NamedTuple

from qac_jax.errors import DataError
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.files import longest_line, open_bytes


MARK = b"WARC/"

_HEADER = 1 << 16  # bytes of one header line
_BLOCK = 1 << 20
_ENDS = (b"\r\n", b"\n")
# What `Content-Encoding` may say, and zlib's number of bits for it.
_GZIP, _DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS


class Record(NamedTuple):
    """A record: its file and its place there (from 1), its headers in lower case, its content."""

    file: str
    number: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("warc-type", "")

    @property
    def id(self) -> str:
        """The record's id without its brackets and what all ids begin with."""
        return self.headers.get("warc-record-id", "").strip("<>").removeprefix("urn:uuid:")

    @property
    def url(self) -> str:
        return self.headers.get("warc-target-uri", "").strip("<>")


class Response(NamedTuple):
    """An HTTP response: its status, its headers in lower case, its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def records(path: str, kinds: Collection[str], bad: BadLines) -> Iterator[Record]:
    """The records of these kinds; those of other kinds and too large ones are not held."""
    limit = longest_line()
    with open_bytes(path) as file:
        number = 0
        while line := _after_blanks(file):
            number += 1
            if not line.startswith(MARK):
                raise _damaged(path, number, f"begins with {line[:20]!r}, not with WARC/")
            headers = _headers(file, path, number)
            length = headers.get("content-length", "")
            if not length.isdecimal():
                raise _damaged(path, number, f"has the Content-Length {length[:20]!r}")
            of_kind = headers.get("warc-type", "") in kinds
            wanted = of_kind and int(length) <= limit
            content = _content(file, int(length), wanted)
            if content is None:
                raise _damaged(path, number, "ends early")
            if wanted:
                yield Record(path, number, headers, content)
            else:
                large = f"records of more than {limit:,} bytes"
                bad.leave_out(large if of_kind else "records of other kinds")


def response(record: Record) -> Response:
    """What a server answered; raises BadRecord where it is not HTTP."""
    head, _, body = record.content.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise BadRecord(f"record {record.number} begins with {first[:20]!r}, not with HTTP/")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _joined(body)
    return Response(int(words[1]), headers, body)


def unpacked(body: bytes, encoding: str) -> bytes | None:
    """A body without its Content-Encoding; None where it cannot be read.

    Crawls often store bodies unpacked, and the header as it came.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity") or not body.startswith((b"\x1f\x8b", b"\x78")):
        return None if encoding in ("br", "zstd") and _is_packed(body) else body
    bits = _GZIP if body.startswith(b"\x1f\x8b") else _DEFLATE
    reader = zlib.decompressobj(bits)
    try:
        text = reader.decompress(body, longest_line())
    except zlib.error:
        return None
    return None if reader.unconsumed_tail else text


def _is_packed(body: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(body[:4096])
    except UnicodeDecodeError:
        return True
    return False


def _after_blanks(file: IO[bytes]) -> bytes:
    """The next line that is not blank, without its end; empty at the end of the file."""
    line = file.readline(_HEADER)
    while line in _ENDS:
        line = file.readline(_HEADER)
    return line


def _headers(file: IO[bytes], path: str, number: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    last = ""
    while (line := file.readline(_HEADER)) not in _ENDS:
        if not line.endswith(b"\n"):
            raise _damaged(path, number, "ends inside its headers")
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text[:1] in (" ", "\t") and last:
            headers[last] += f" {text.strip()}"
            continue
        name, colon, value = text.partition(":")
        if not colon:
            raise _damaged(path, number, f"has the header {text[:20]!r}")
        last = name.strip().lower()
        headers[last] = value.strip()
    return headers


def _content(file: IO[bytes], length: int, wanted: bool) -> bytes | None:
    """The next bytes (nothing of them where they are not wanted); None: the file ends before."""
    held: list[bytes] = []
    while length:
        block = file.read(min(length, _BLOCK))
        if not block:
            return None
        length -= len(block)
        if wanted:
            held.append(block)
    return b"".join(held)


def _joined(body: bytes) -> bytes:
    """A chunked body in one piece; as it is where it is not chunked (any more)."""
    parts: list[bytes] = []
    rest = body
    while True:
        size, _, rest = rest.partition(b"\r\n")
        try:
            length = int(size.split(b";")[0], 16)
        except ValueError:
            return body
        if length < 0 or length > len(rest):
            return body
        if length == 0:
            return b"".join(parts)
        parts.append(rest[:length])
        rest = rest[length:].removeprefix(b"\r\n")


def _damaged(path: str, number: int, why: str) -> DataError:
    return DataError(f"record {number} {why}; the file is damaged, fetch it again", file=path)
