"""The creation of the bundled model `demo-vision`: pictures, questions, the model and its training."""
