"""QExt-Self: a span's salience is the dot product of its vector and the document's.

In training, the encoder being trained computes it on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from qac_jax.inference.encoder import Encoder


@dataclasses.dataclass(frozen=True)
class EncoderSalience:
    """span · document."""

    encoder: Encoder

    def __call__(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        return self.compare(*self.vectors(documents, spans))

    def vectors(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Vectors of the documents, and of the spans of each."""
        whole = self.encoder.encode(documents, "passage")
        flat = self.encoder.encode([span for of in spans for span in of], "query")
        return whole, np.split(flat, np.cumsum([len(of) for of in spans])[:-1])

    def compare(
        self, documents: Sequence[np.ndarray] | np.ndarray, spans: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """span · document of vectors."""
        return [part @ vector for part, vector in zip(spans, documents, strict=True)]
