"""Figures into tables, plots, pages and model cards."""
