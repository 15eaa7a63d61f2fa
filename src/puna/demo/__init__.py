"""The bundled models, `demo` and `demo-vision` to all commands. `demo/` in the repository makes them."""

from pathlib import Path


def path(name: str = "demo") -> Path:
    """Where the file of that model lies."""
    return Path(__file__).with_name(f"{name}.gguf")
