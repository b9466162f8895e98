"""Models that are only applied: encoders, rerankers, generators, likelihoods."""
