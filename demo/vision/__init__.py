"""How the bundled model `demo-vision` is made: pictures, questions about them, the model and its training."""
