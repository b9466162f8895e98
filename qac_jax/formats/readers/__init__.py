"""Formats: a folder for what they hold, a file for each. What several share stands beside them."""
