"""Retrieval: indexes, search, reranking, hard negatives and pseudo-labels."""
