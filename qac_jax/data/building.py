"""Settings of `tokenize` that decide what is stored: light to import."""

from __future__ import annotations


# Other passages of a document that may be a passage's context: within 100, next to it, or a text
# that shares sentences with it.
SORTS = ("random", "nearby", "overlap")
