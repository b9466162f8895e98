"""A file for every format of queries: its name is the format's, and it declares FORMAT."""
