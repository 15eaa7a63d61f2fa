"""The ways calls are written: one file for each idea."""
