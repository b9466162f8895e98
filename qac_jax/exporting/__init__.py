"""What was made, for other libraries: model folders and their cards, tables, rows of databases."""
