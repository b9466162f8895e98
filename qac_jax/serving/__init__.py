"""A living index behind HTTP: an endpoint, embeddings for existing clients, a page."""
