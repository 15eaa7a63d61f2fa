"""The config blob of a model: labels that describe it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from puna import gojson
from puna.errors import StoreError


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The labels of a model, by their names on disk.

    `model_type` is the parameter count (`7.2B`), `file_type` the quantisation (`Q4_K_M`).
    """

    model_format: str = ""
    model_family: str = ""
    model_families: tuple[str, ...] | None = None
    model_type: str = ""
    file_type: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    remote_host: str = ""
    remote_model: str = ""
    capabilities: tuple[str, ...] | None = None
    context_length: int = 0
    embedding_length: int = 0
    base_name: str = ""

    @classmethod
    def decode(cls, data: bytes, where: str) -> ModelConfig:
        """Parse a config blob. Ignores unknown keys and `null` values. Raises StoreError naming `where`."""
        try:
            raw = msgspec.json.decode(data, type=dict[str, Any])
            return msgspec.convert({key: value for key, value in raw.items() if value is not None}, cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"{where}: not a model config ({error}); create the model again") from error

    def encode(self, layer_digests: Sequence[str]) -> bytes:
        """Encode the config blob of a model with these layers, byte for byte as Ollama writes it."""
        optional: dict[str, Any] = {
            "renderer": self.renderer,
            "parser": self.parser,
            "requires": self.requires,
            "remote_host": self.remote_host,
            "remote_model": self.remote_model,
            "capabilities": list(self.capabilities or ()),
            "context_length": self.context_length,
            "embedding_length": self.embedding_length,
            "base_name": self.base_name,
        }
        value: dict[str, Any] = {
            "model_format": self.model_format,
            "model_family": self.model_family,
            "model_families": None if self.model_families is None else list(self.model_families),
            "model_type": self.model_type,
            "file_type": self.file_type,
            **{name: item for name, item in optional.items() if item},
            "architecture": "amd64",  # constant: part of the format, not this machine's architecture
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": list(layer_digests)},
        }
        return (gojson.dumps(value) + "\n").encode()


def parameter_label(count: int) -> str:
    """Format a parameter count: `7B`, `3.2B`, `362.82M`, `99K`, `7`."""
    if count >= 10**9:
        return _scaled(count, 10**9, 1) + "B"
    if count >= 10**6:
        return _scaled(count, 10**6, 2) + "M"
    if count >= 1000:
        return f"{count // 1000}K"
    return str(count)


def _scaled(count: int, unit: int, decimals: int) -> str:
    if count % unit == 0:
        return str(count // unit)
    return f"{count / unit:.{decimals}f}"
