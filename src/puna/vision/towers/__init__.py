"""Vision towers, one file per lineage."""
