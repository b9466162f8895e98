"""Bytes of unknown origin into text: by byte-order mark, as UTF-8, as declared, or by a guess.

decoded(raw)                  # ("Füße", "cp1252", True): True where the encoding is a guess
decoded(raw, declared="latin-1")
"""

from __future__ import annotations

import codecs
from typing import NamedTuple


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD = 1 << 13
_SAMPLE = 1 << 18
# With fewer bytes beyond ASCII than this, frequencies of letters say nothing.
_ENOUGH = 24
_SINGLE = "cp1252"
# Bytes that text does not hold; tab, line ends, form feed and escape are not among them.
_CONTROLS = bytes(b for b in range(32) if b not in (7, 8, 9, 10, 11, 12, 13, 27)) + b"\x7f"
_SIGNATURES = (
    b"%PDF-", b"PK\x03\x04", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"\x7fELF", b"\x1f\x8b",
    b"BZh", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"\xd0\xcf\x11\xe0", b"SQLite format 3", b"PAR1",
)  # fmt: skip


class Decoded(NamedTuple):
    text: str
    encoding: str
    guessed: bool


def is_binary(raw: bytes) -> bool:
    """Whether these bytes are no text: a known signature, zero bytes, many control characters."""
    if raw.startswith(_SIGNATURES):
        return True
    if _marked(raw) or _wide(raw):
        return False
    head = raw[:_HEAD]
    return b"\0" in head or len(head) - len(head.translate(None, _CONTROLS)) > len(head) // 20


def decoded(raw: bytes, declared: str = "") -> Decoded:
    """The text. What a file declares of itself counts only where it is not UTF-8 and fits."""
    if mark := _marked(raw):
        return Decoded(raw.decode(mark, "replace").removeprefix("\ufeff"), mark, False)
    if wide := _wide(raw):
        return Decoded(raw.decode(wide, "replace"), wide, True)
    try:
        return Decoded(raw.decode(), "utf-8", False)
    except UnicodeDecodeError:
        pass
    if text := _as(raw, declared):
        return Decoded(text, declared.lower(), False)
    for name in (_likely(raw), _SINGLE):
        if text := _as(raw, name):
            return Decoded(text, name, True)
    return Decoded(raw.decode("latin-1"), "latin-1", True)


def _marked(raw: bytes) -> str:
    return next((name for mark, name in _MARKS if raw.startswith(mark)), "")


def _wide(raw: bytes) -> str:
    """UTF-16 without a mark: every second byte of Western text is zero."""
    head = raw[: _HEAD // 2 * 2]
    half = len(head) // 2
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if half >= 4 and odd > 0.4 * half and even < 0.05 * half:
        return "utf-16-le"
    if half >= 4 and even > 0.4 * half and odd < 0.05 * half:
        return "utf-16-be"
    return ""


def _likely(raw: bytes) -> str:
    """What charset-normalizer takes it for, where it is installed and has enough to go by."""
    sample = raw[:_SAMPLE]
    if sum(byte > 127 for byte in sample) < _ENOUGH:
        return _SINGLE
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return _SINGLE
    best = from_bytes(sample).best()
    return best.encoding if best else _SINGLE


def _as(raw: bytes, encoding: str) -> str:
    """The text in this encoding; "" where it does not fit or there is no such encoding."""
    try:
        return raw.decode(encoding) if encoding else ""
    except (LookupError, ValueError):
        return ""
