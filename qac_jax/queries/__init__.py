"""Queries: generates, extracts, imports and filters queries of passages."""
