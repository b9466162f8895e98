"""One module a family of formats: files to documents."""
