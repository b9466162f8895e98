"""Queries: passages -> what may be asked or said about them, with its origin."""
