"""Readers of the formats: tables of them, which `formats/registry.py` finds."""
