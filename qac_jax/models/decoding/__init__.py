"""Texts out of a T5: sampling, beam search, and their rules."""
