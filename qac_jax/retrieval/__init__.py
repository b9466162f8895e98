"""Texts and vectors into ranked lists."""
