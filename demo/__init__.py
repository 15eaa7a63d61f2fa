"""Creates the bundled demo model: synthetic text, training, export, evaluation (see README.md)."""
