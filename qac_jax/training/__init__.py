"""Training: (objective, examples, mesh) -> trained parameters."""
