"""Vision towers, one file for each lineage."""
