"""Manifests: lists of a model's blobs, read leniently and written byte for byte as Ollama does."""

from __future__ import annotations

import msgspec

from puna import gojson
from puna.errors import InvalidNameError, StoreError
from puna.store.blobs import normalize_digest

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
_IMAGE = "application/vnd.ollama.image."
MODEL = _IMAGE + "model"
PROJECTOR = _IMAGE + "projector"
ADAPTER = _IMAGE + "adapter"
TEMPLATE = _IMAGE + "template"
PROMPT = _IMAGE + "prompt"  # the type of templates in old stores
SYSTEM = _IMAGE + "system"
PARAMS = _IMAGE + "params"
MESSAGES = _IMAGE + "messages"
LICENSE = _IMAGE + "license"
TENSOR = _IMAGE + "tensor"


class ManifestLayer(
    msgspec.Struct, frozen=True, kw_only=True, rename={"media_type": "mediaType", "origin": "from"}
):
    """One blob of a model. `origin` is the parent model's name or the path of the layer's file."""

    media_type: str
    digest: str
    size: int
    origin: str = ""
    name: str = ""
    scale: float = 1.0  # of an adapter; not in Ollama's manifests

    def to_json(self) -> dict[str, object]:
        value: dict[str, object] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.origin:
            value["from"] = self.origin
        if self.name:
            value["name"] = self.name
        if self.scale != 1:
            value["scale"] = self.scale
        return value


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The config layer and the content layers, in order."""

    config: ManifestLayer
    layers: tuple[ManifestLayer, ...] = ()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        """Parse a manifest, ignoring unknown keys, and normalise its digests.

        Raises StoreError naming `where`.
        """
        try:
            manifest = msgspec.json.decode(data, type=cls)
            return cls(
                config=_checked(manifest.config), layers=tuple(_checked(layer) for layer in manifest.layers)
            )
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidNameError, RecursionError) as error:
            raise StoreError(f"{where}: not a model manifest ({error}); create the model again") from error

    def encode(self) -> bytes:
        """Encode as compact JSON with keys in Ollama's order and a trailing newline."""
        value = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.config.to_json(),
            "layers": [layer.to_json() for layer in self.layers],
        }
        return (gojson.dumps(value) + "\n").encode()

    def of_type(self, *media_types: str) -> list[ManifestLayer]:
        return [layer for layer in self.layers if layer.media_type in media_types]

    def digests(self) -> set[str]:
        """Return the digests of all blobs in this manifest."""
        return {self.config.digest, *(layer.digest for layer in self.layers)}

    @property
    def size(self) -> int:
        """Bytes of all layers and the config."""
        return self.config.size + sum(layer.size for layer in self.layers)


def _checked(layer: ManifestLayer) -> ManifestLayer:
    return msgspec.structs.replace(layer, digest=normalize_digest(layer.digest))
