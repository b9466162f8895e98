"""A file for every kind of file that a folder of documents may hold; it declares FORMAT."""
