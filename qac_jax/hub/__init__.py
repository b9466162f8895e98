"""Model folders of other libraries, in and out."""
