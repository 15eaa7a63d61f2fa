"""All architectures, one file each. Importing this package registers them."""

from puna.model.models import gemma3, lfm2, llama, llama4, mllama

__all__ = ["gemma3", "lfm2", "llama", "llama4", "mllama"]
