"""A file for every format of training lines: its name is the format's, and it declares FORMAT."""
