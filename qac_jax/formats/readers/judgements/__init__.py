"""A file for every format of judgements: its name is the format's, and it declares FORMAT."""
