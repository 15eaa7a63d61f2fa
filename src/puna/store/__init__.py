"""The model store on disk, in Ollama's layout: names, manifests, blobs, Modelfiles."""

from puna.store.blobs import normalize_digest
from puna.store.create import ModelSpec
from puna.store.names import ModelName
from puna.store.store import Store
from puna.store.stored import StoredModel

__all__ = ["ModelName", "ModelSpec", "Store", "StoredModel", "normalize_digest"]
