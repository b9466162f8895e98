"""TREC's four columns: query, 0, passage, grade."""

from __future__ import annotations

from qac_jax.formats.judgements import Judgement, JudgementFormat, grade


FORMAT = JudgementFormat(
    ("query", "0", "passage", "grade"),
    lambda fields: Judgement(fields[0], fields[2], grade(fields[3])),
)
