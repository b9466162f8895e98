"""Questions with their judgements, written as `NAME_queries.jsonl` and `NAME.tsv`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from qac_jax.artifacts import Writer


def write(
    out: Writer, name: str, texts: Mapping[str, str], judged: Mapping[str, Mapping[str, int]]
) -> None:
    """Query id -> text, and query id -> passage id -> grade, as files of an artefact."""
    with out.open(f"{name}_queries.jsonl") as file:
        for query, text in texts.items():
            file.write(json.dumps({"_id": query, "text": text}, ensure_ascii=False) + "\n")
    with out.open(f"{name}.tsv") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query in texts:
            file.writelines(f"{query}\t{p}\t{grade}\n" for p, grade in judged[query].items())
