"""BEIR's three columns: query, passage, grade, below a header."""

from __future__ import annotations

from qac_jax.formats.judgements import Judgement, JudgementFormat, grade


FORMAT = JudgementFormat(
    ("query", "passage", "grade"), lambda fields: Judgement(fields[0], fields[1], grade(fields[2]))
)
