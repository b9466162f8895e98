"""Layouts of judgements, one a line, known by their columns."""

from __future__ import annotations

from qac_jax.formats.judgements import Judgement, JudgementFormat, grade


JUDGEMENT_FORMATS = {
    # Below a header.
    "beir": JudgementFormat(
        ("query", "passage", "grade"), lambda f: Judgement(f[0], f[1], grade(f[2]))
    ),
    # Every pair is relevant.
    "pairs": JudgementFormat(("query", "passage"), lambda f: Judgement(f[0], f[1])),
    "trec": JudgementFormat(
        ("query", "0", "passage", "grade"), lambda f: Judgement(f[0], f[2], grade(f[3]))
    ),
    # Clicks.
    "orcas": JudgementFormat(
        ("query", "text", "passage", "url"),
        lambda f: Judgement(f[0], f[2]),
        matches=lambda f: f[3].startswith(("http:", "https:")),
    ),
}
