"""Query-as-context pre-training, PAIR and AugTriever in JAX: documents in, a retriever out."""

__version__ = "0.1.0"
