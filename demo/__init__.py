"""The creation of the bundled demo model: synthetic text, training, export, evaluation (see README.md)."""
