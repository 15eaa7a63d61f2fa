"""The creation of the bundled model `demo-audio`: synthetic speech, questions, the model and its training."""
