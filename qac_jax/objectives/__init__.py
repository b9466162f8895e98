"""Objectives: (parameters, batch, key) -> loss; one file for each paper's objective."""
