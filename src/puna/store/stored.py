"""One model of the store, with parts read on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from puna.errors import GGUFError, StoreError, UnsupportedModelError
from puna.options import AdapterFile
from puna.store import manifest as media
from puna.store.blobs import has_changed, read_whole
from puna.store.config import ModelConfig
from puna.store.facts import Facts, facts_of
from puna.store.manifest import Manifest, ManifestLayer
from puna.store.names import ModelName

#: Contents of a store's files by media type.
_CONTENTS: Final = {
    media.CONFIG: "config",
    media.MODEL: "model file",
    media.PROJECTOR: "vision tower",
    media.ADAPTER: "adapter",
    media.TEMPLATE: "template",
    media.PROMPT: "template",
    media.SYSTEM: "system text",
    media.PARAMS: "list of parameters",
    media.MESSAGES: "list of messages",
    media.LICENSE: "license",
}


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model described by its manifest. Layers are read on first use, which may raise StoreError."""

    model_name: ModelName
    manifest: Manifest
    config: ModelConfig
    digest: str  # sha256 of the manifest's bytes, hex without prefix
    modified_ns: int  # since the epoch
    files: Mapping[str, Path] = field(repr=False)  # digest -> blob file
    bundled: bool = False  # part of the package, not of the store's directory

    @property
    def name(self) -> str:
        """The display name, always with its tag: `llama3:latest`."""
        return self.model_name.display

    @property
    def size(self) -> int:
        """Total bytes of its blobs."""
        return self.manifest.size

    @property
    def modified_at(self) -> datetime:
        """`modified_ns` in local time, truncated to microseconds."""
        seconds, rest_ns = divmod(self.modified_ns, 10**9)
        return datetime.fromtimestamp(seconds).astimezone() + timedelta(microseconds=rest_ns // 1000)

    @property
    def model_layer(self) -> ManifestLayer | None:
        """The layer of the GGUF file; the last one if there are several."""
        layers = self.manifest.of_type(media.MODEL)
        return layers[-1] if layers else None

    @property
    def model_path(self) -> Path | None:
        """The GGUF file, whether or not it exists; None if the model has none."""
        layer = self.model_layer
        return self.files[layer.digest] if layer else None

    @property
    def projector_paths(self) -> list[Path]:
        return self._paths(media.PROJECTOR)

    @property
    def adapter_paths(self) -> list[Path]:
        return self._paths(media.ADAPTER)

    @property
    def adapters(self) -> tuple[AdapterFile, ...]:
        """The adapters the model is loaded with; those without a name are named by their digest."""
        return tuple(
            AdapterFile(
                str(self.files[layer.digest]), layer.name or layer.digest.partition(":")[2][:12], layer.scale
            )
            for layer in self.manifest.of_type(media.ADAPTER)
        )

    @property
    def is_remote(self) -> bool:
        """Whether this is a stub for a model that runs elsewhere, listed but not runnable."""
        return bool(self.config.remote_host and self.config.remote_model)

    def runnable_path(self) -> Path:
        """Return the GGUF file to load. Raises UnsupportedModelError or StoreError if it cannot be run."""
        if self.is_remote:
            raise UnsupportedModelError(f"{self.name} only runs in the cloud; it has no model file to load")
        if self.manifest.of_type(media.TENSOR):
            raise UnsupportedModelError(f"{self.name} is stored as MLX tensors; only GGUF models can be run")
        layer = self.model_layer
        if layer is None:
            raise StoreError(f"{self.name} has no model file; create or pull it again")
        for needed in (layer, *self.manifest.of_type(media.PROJECTOR, media.ADAPTER)):
            self._check(needed)
        return self.files[layer.digest]

    @cached_property
    def template(self) -> str | None:
        """The Go template layer; None if the model has none (the GGUF's own template then applies)."""
        return self._text(media.TEMPLATE, media.PROMPT)

    @cached_property
    def system(self) -> str | None:
        return self._text(media.SYSTEM)

    @cached_property
    def license(self) -> list[str]:
        return [self._read(layer) for layer in self.manifest.of_type(media.LICENSE)]

    @cached_property
    def params(self) -> dict[str, Any]:
        """The model's own options by their Modelfile names, not validated."""
        layers = self.manifest.of_type(media.PARAMS)
        return self._json(layers[-1], dict[str, Any]) if layers else {}

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """The messages each chat starts with: `role` and `content`."""
        layers = self.manifest.of_type(media.MESSAGES)
        return self._json(layers[-1], list[dict[str, Any]]) if layers else []

    @property
    def facts(self) -> Facts | None:
        """The facts of the GGUF file; None if it is missing or damaged."""
        path = self.model_path
        try:
            return facts_of(path) if path else None
        except (GGUFError, OSError):
            return None

    @property
    def parameter_size(self) -> str:
        return self.config.model_type

    @property
    def quantization(self) -> str:
        return self.config.file_type

    @property
    def details(self) -> dict[str, Any]:
        """`ModelDetails` of the API, without the two lengths that `/api/tags` adds (see `facts`)."""
        layer = self.model_layer
        families = self.config.model_families
        return {
            "parent_model": layer.origin if layer else "",
            "format": self.config.model_format,
            "family": self.config.model_family,
            "families": None if families is None else list(families),
            "parameter_size": self.config.model_type,
            "quantization_level": self.config.file_type,
        }

    def _paths(self, media_type: str) -> list[Path]:
        return [self.files[layer.digest] for layer in self.manifest.of_type(media_type)]

    def _text(self, *media_types: str) -> str | None:
        layers = self.manifest.of_type(*media_types)
        return self._read(layers[-1]) if layers else None

    def _check(self, layer: ManifestLayer) -> None:
        """Raise StoreError unless the layer's file exists, unchanged since the model was made."""
        path = self.files[layer.digest]
        if not path.is_file():
            raise _broken(self.name, layer.media_type, path, "is missing")
        if (size := path.stat().st_size) != layer.size:
            how = f"has {size} bytes, not the {layer.size} it had when the model was made"
            raise _broken(self.name, layer.media_type, path, how)
        if has_changed(path):
            how = "was changed or moved after the model was made from it"
            raise _broken(self.name, layer.media_type, path, how)

    def _read(self, layer: ManifestLayer) -> str:
        return read_layer(self.name, layer.media_type, self.files[layer.digest]).decode("utf-8", "replace")

    def _json(self, layer: ManifestLayer, kind: Any) -> Any:
        try:
            return msgspec.json.decode(self._read(layer), type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            path = self.files[layer.digest]
            raise _broken(self.name, layer.media_type, path, f"is damaged ({error})") from error


def read_layer(name: str, media_type: str, path: Path) -> bytes:
    """Read the text of a layer of the model `name`. Raises StoreError."""
    try:
        return read_whole(path)
    except FileNotFoundError:
        raise _broken(name, media_type, path, "is missing") from None
    except OSError as error:
        raise _broken(name, media_type, path, f"cannot be read ({error.strerror})") from error


def _broken(name: str, media_type: str, path: Path, how: str) -> StoreError:
    """Return the error about a file of a model, hiding its place in the store from clients."""
    subject = f"{name}: its {_CONTENTS[media_type]}"
    if path.is_symlink():  # to a user's own file
        return StoreError(
            f"{subject} {path.readlink()} {how}; create the model again, or 'puna run' the file itself"
        )
    return StoreError(
        f"{subject} {how}; if it came from a registry, 'puna doctor --store --heal' downloads it "
        "again; otherwise pull or create the model again"
    )
