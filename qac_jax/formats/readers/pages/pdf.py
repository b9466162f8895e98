"""PDF, page by page, by the package pypdf (the extra `pdf`)."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

from qac_jax.formats.documents import Document
from qac_jax.formats.pages import Headed, NotRead, PageFormat, Source, page, paragraphs


# A word that is divided at the end of a line.
_DIVIDED = re.compile(r"(?<=[a-zß-ÿ])-\n(?=[a-zß-ÿ])")
MISSING = "PDF without the package pypdf (pip install pypdf)"


def read(source: Source) -> Iterator[Document]:
    try:
        import pypdf
    except ImportError:
        raise NotRead(MISSING, "or install the extra: pip install 'qac_jax[pdf]'") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs every flaw of a file
    raw = source.raw()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            title, pages = _read(pypdf, raw, source)
    except NotRead:
        raise
    except Exception as error:  # of many types: pypdf reads what others have written badly
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise NotRead("damaged PDF", reason) from None
    whole = (_DIVIDED.sub("", text) for text in pages)
    headed = [Headed(0, "", "\n".join(paragraphs(text))) for text in whole]
    further = [{"page": number} for number in range(1, len(pages) + 1)]
    yield page(source, title, headed, {"pages": len(pages)}, further)


def _read(pypdf: Any, raw: bytes, source: Source) -> tuple[str, list[str]]:
    reader = pypdf.PdfReader(io.BytesIO(raw), strict=False)
    if reader.is_encrypted and not _opens(reader):
        raise NotRead("PDF with a password")
    pages = []
    for number, one in enumerate(reader.pages, 1):
        try:
            pages.append(one.extract_text() or "")
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            source.skip("damaged page of a PDF", f"page {number}: {reason}")
            pages.append("")
    information = reader.metadata
    return " ".join(str((information and information.title) or "").split()), pages


def _opens(reader: Any) -> bool:
    """Whether an encrypted file opens without a password."""
    try:
        return bool(reader.decrypt(""))
    except Exception:  # some ciphers need a further package
        return False


def version() -> str:
    """Of the package; "" where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("pypdf")
    except metadata.PackageNotFoundError:
        return ""


FORMAT = PageFormat((".pdf",), read)
