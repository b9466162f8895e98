"""Text: files -> documents -> passages -> token ids."""
