"""The formats documents come in. The modules that read them are loaded only when used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from qac_jax.errors import UserError, nearest


@dataclass(frozen=True)
class Format:
    """A way to store documents.

    `module` (below qac_jax.formats) has two functions under the names given here:
    `share(path, count, options) -> list[tuple[Piece, …]]` says what the parts are (count None:
    as many as suit the data), and `read(shard, bad) -> Iterator[Document]` reads one of them.
    """

    name: str
    help: str
    module: str
    read: str
    share: str
    options: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> ModuleType:
        return importlib.import_module(f"qac_jax.formats.{self.module}")


def _formats(*formats: Format) -> dict[str, Format]:
    return {f.name: f for f in formats}


FORMATS = _formats(
    Format(
        "msmarco_docs",
        "MS MARCO documents: docid, url, title, body in msmarco-docs.tsv",
        "readers.msmarco",
        "read_documents",
        "share_documents",
        {"released": "false"},
    ),
    Format(
        "msmarco_passages",
        "MS MARCO passages: collection.tsv (id, text), corpus.tsv (id, title, text), or a folder "
        "with RocketQA's para.txt and para.title.txt",
        "readers.msmarco",
        "read_passages",
        "share_passages",
    ),
    Format(
        "tsv",
        "tab-separated lines; columns=… names them out of id, title, text, url and _",
        "readers.msmarco",
        "read_table",
        "share_table",
        {"columns": "id,text"},
    ),
    Format(
        "beir",
        "a BEIR folder: corpus.jsonl, and documents.jsonl where the documents are known",
        "readers.beir",
        "read",
        "share",
    ),
    Format(
        "dpr",
        "DPR's psgs_w100.tsv: id, text, title; passages of one article follow one another",
        "readers.dpr",
        "read",
        "share",
    ),
    Format(
        "tevatron",
        "Tevatron JSONL: corpus lines, or training lines (each passage once)",
        "readers.tevatron",
        "read",
        "share",
    ),
    Format(
        "jsonl",
        "JSON lines: text (or contents, content, body), with or without id, title, meta; The Pile",
        "readers.jsonl",
        "read",
        "share",
        {"id": "", "title": "", "text": ""},
    ),
    Format(
        "mrqa",
        "MRQA JSONL: the contexts of its questions",
        "readers.mrqa",
        "read",
        "share",
    ),
    Format(
        "wikipedia",
        "a Wikipedia XML dump: pages-articles.xml, .bz2 or not",
        "readers.wikipedia",
        "read",
        "share",
    ),
    Format(
        "text",
        "a folder of text files: one file is one document",
        "readers.folders",
        "read_text",
        "share_text",
    ),
    Format(
        "html",
        "a folder of HTML files: one file is one document",
        "readers.folders",
        "read_html",
        "share_html",
    ),
    Format(
        "tfds",
        "a TensorFlow dataset by name, such as wikipedia/20230601.en",
        "readers.named",
        "read_tfds",
        "share_tfds",
        {"split": "train", "data_dir": "", "id": "", "title": "", "text": ""},
    ),
    Format(
        "huggingface",
        "a Hugging Face dataset by name, such as wikimedia/wikipedia:20231101.en",
        "readers.named",
        "read_huggingface",
        "share_huggingface",
        {"split": "train", "id": "", "title": "", "text": ""},
    ),
    Format(
        "ir_datasets",
        "a collection of ir_datasets by name, such as msmarco-passage",
        "readers.named",
        "read_ir_datasets",
        "share_ir_datasets",
    ),
    Format(
        "python_docs",
        "docstrings of installed Python packages; the path lists them: numpy,scipy,stdlib",
        "python.python_docs",
        "read",
        "share",
        {"held_out": "include", "kinds": "", "sections": "all", "summary": "keep"},
    ),
)


def get_format(name: str) -> Format:
    if name not in FORMATS:
        raise UserError(f"unknown format {name!r}; {nearest(name, FORMATS)}")
    return FORMATS[name]


def checked_options(spec: Format, options: Mapping[str, Any]) -> dict[str, str]:
    chosen = dict(spec.options)
    for name, value in options.items():
        if name not in chosen:
            raise UserError(
                f"format {spec.name!r} has no option {name!r}; {nearest(name, spec.options)}"
            )
        chosen[name] = str(value).lower() if isinstance(value, bool) else str(value)
        if spec.options[name] in ("true", "false") and chosen[name] not in ("true", "false"):
            raise UserError(f"option {name}={value!r} of {spec.name!r}: expected true or false")
    return chosen
