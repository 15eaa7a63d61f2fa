"""The bundled models, `demo` and `demo-vision` in all commands, made by `demo/` in the repository."""

from pathlib import Path


def path(name: str = "demo") -> Path:
    """Return the path of a bundled model's file."""
    return Path(__file__).with_name(f"{name}.gguf")
