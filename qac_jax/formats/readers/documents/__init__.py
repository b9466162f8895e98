"""A file for every format of documents: its name is the format's, and it declares FORMAT."""
