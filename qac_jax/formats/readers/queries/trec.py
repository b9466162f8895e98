"""TREC topics, SGML (<top><num>…) or XML (<topic number="1"><query>…).

The text is the title (or query); the description and narrative are in the meta.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.files import whole_text
from qac_jax.formats.queries import Query, QueryFormat
from qac_jax.formats.registry import NO, SURE, Sample


_TOPIC = re.compile(r"<top(ic)?\b(?P<attributes>[^>]*)>(?P<body>.*?)</top(?(1)ic)>", re.DOTALL)
_NUMBER = re.compile(r"number\s*=\s*[\"']?([\w.-]+)")
_FIELD = re.compile(r"<(num|title|desc|narr|query|question|narrative)>([^<]*)", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:Number|Topic|Description|Narrative|Title)\s*:\s*", re.IGNORECASE)


def read(file: str, bad: BadLines) -> Iterator[Query]:
    text = whole_text(file)
    for match in _TOPIC.finditer(text):
        place = Place(file, text.count("\n", 0, match.start()) + 1)
        fields = {
            name.lower(): " ".join(_LABEL.sub("", value).split())
            for name, value in _FIELD.findall(match["body"])
        }
        number = _NUMBER.search(match["attributes"])
        name = fields.pop("num", "") or (number[1] if number else "")
        topic = fields.pop("title", "") or fields.pop("query", "")
        yield Query(name, topic or fields.get("desc", ""), meta=fields, place=place)


def recognise(sample: Sample) -> int:
    return SURE if sample.head.startswith("<") else NO


FORMAT = QueryFormat(read, recognise)
