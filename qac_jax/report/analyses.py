"""Plots and tables of two analyses: similarity (PAIR, Figure 4), relatedness (QAC, appendix A)."""

from __future__ import annotations

from collections.abc import Mapping

from qac_jax.evaluation.similarity import Similarity
from qac_jax.report import plots, tables
from qac_jax.report.plots import Series
from qac_jax.report.tables import number


# A file of its own is shown larger than a plot of a page.
_ZOOM = 1.6


def similarity_table(similarities: Mapping[str, Similarity]) -> str:
    """A Markdown table, one encoder a line."""
    header = (
        "encoder",
        "queries",
        "s(p⁺, q)",
        "s(p⁺, p⁻)",
        "query nearer",
        "cosine q",
        "cosine p⁻",
    )
    rows = [
        [
            name,
            f"{s.queries:,}",
            number(s.to_query),
            number(s.to_negatives),
            f"{s.nearer:.1%}",
            number(s.cosine_to_query),
            number(s.cosine_to_negatives),
        ]
        for name, s in similarities.items()
    ]
    return tables.markdown(header, rows)


def similarity_svg(similarities: Mapping[str, Similarity]) -> str:
    """s(p⁺, p⁻) over the negatives' ranks, one line an encoder.

    Encoders' scores have scales of their own, so each is drawn relative to its s(p⁺, q), which is
    the dashed line at 0: below it a negative is farther from the positive passage than the query.
    """
    series = []
    for name, similarity in similarities.items():
        ranks = [r for r, value in enumerate(similarity.by_rank, 1) if value is not None]
        values = [v - similarity.to_query for v in similarity.by_rank if v is not None]
        series.append(Series(name, ranks, values))
    across, up = "rank of the negative (dashed: the query)", "s(p⁺, p⁻) − s(p⁺, q)"
    return plots.lines(series, across, up, reference=0.0).file(_ZOOM)


def relatedness_svg(shares: Mapping[str, Mapping[str, float]]) -> str:
    """Shares of pairs by the rank of the passage, one colour a kind of context."""
    label = "rank of the passage in BM25's results for its context"
    return plots.columns(shares, label, "share of pairs").file(_ZOOM)
