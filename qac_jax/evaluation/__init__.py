"""Runs and judgements into figures."""
