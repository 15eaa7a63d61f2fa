"""The bundled demo model, called `demo` wherever a model is named. `demo/` in the repository makes it."""

from pathlib import Path


def path() -> Path:
    """Where the model file lies."""
    return Path(__file__).with_name("demo.gguf")
