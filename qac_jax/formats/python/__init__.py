"""Docstrings of Python packages as documents."""
