"""Two columns: query, passage. Every pair is relevant."""

from __future__ import annotations

from qac_jax.formats.judgements import Judgement, JudgementFormat


FORMAT = JudgementFormat(("query", "passage"), lambda fields: Judgement(fields[0], fields[1]))
