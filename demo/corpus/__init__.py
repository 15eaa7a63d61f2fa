"""The synthetic text the demo model learns from, one file per kind of text."""
