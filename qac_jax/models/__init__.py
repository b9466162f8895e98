"""Models: token ids -> hidden states, vectors, logits."""
