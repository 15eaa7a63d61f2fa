"""How the bundled demo model was made: synthetic text, training, export, evaluation (see README.md)."""
