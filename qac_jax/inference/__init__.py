"""Inference: encoders, rerankers, generators, likelihoods."""
