"""All architectures, one file each. Importing this package registers them."""

from puna.model.models import llama

__all__ = ["llama"]
