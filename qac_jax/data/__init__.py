"""Data: text artefacts -> token examples -> batches."""
