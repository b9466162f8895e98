"""ORCAS clicks: query id, query, document id, url."""

from __future__ import annotations

from qac_jax.formats.judgements import Judgement, JudgementFormat


FORMAT = JudgementFormat(
    ("query", "text", "passage", "url"),
    lambda fields: Judgement(fields[0], fields[2]),
    matches=lambda fields: fields[3].startswith(("http:", "https:")),
)
