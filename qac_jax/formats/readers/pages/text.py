"""Plain text: paragraphs, divided by blank lines, become one line each."""

from __future__ import annotations

from collections.abc import Iterator

from qac_jax.formats.documents import Document
from qac_jax.formats.pages import Headed, PageFormat, Source, page, paragraphs


def read(source: Source) -> Iterator[Document]:
    yield page(source, source.name, [Headed(0, "", "\n".join(paragraphs(source.text())))])


# Without a suffix: README, LICENSE.
FORMAT = PageFormat((".txt", ".text", ".log", ""), read)
