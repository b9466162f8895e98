"""Objectives: (parameters, batch, key) -> loss; one file a paper's objective."""
