"""The bundled models `demo`, `demo-vision` and `demo-audio`, made by `demo/` in the repository."""

from pathlib import Path


def path(name: str = "demo") -> Path:
    """Return the path of a bundled model's file."""
    return Path(__file__).with_name(f"{name}.gguf")


def projector_path(name: str) -> Path:
    """Return the path of the file of a bundled model's tower, if it is not in the model's own."""
    return Path(__file__).with_name(f"{name}-mmproj.gguf")
