"""Model families, each described by a table."""
