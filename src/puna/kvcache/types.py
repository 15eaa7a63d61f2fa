"""Types of stored keys and values. Imports no tensors, since the server checks settings with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from puna.config import env
from puna.errors import OptionError
from puna.gguf import GGMLType

_NAMES: Final = {
    kind.name.lower(): kind
    for kind in (GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.BF16, GGMLType.F32)
}


@dataclass(frozen=True)
class KVTypes:
    """The types in which a cache stores keys and values."""

    keys: GGMLType = GGMLType.F16
    values: GGMLType = GGMLType.F16

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `q8_0` (both) or `q8_0,q4_0` (keys, values). Raises `OptionError`."""
        names = [name.strip().lower() for name in text.split(",")]
        if len(names) > 2 or any(name not in _NAMES for name in names):
            raise OptionError(
                f"'{text}' is not a type of key/value cache; use one of {', '.join(_NAMES)}, or two for keys "
                "and values, as in q8_0,q4_0"
            )
        return cls(_NAMES[names[0]], _NAMES[names[-1]])

    @classmethod
    def from_env(cls) -> Self:
        """Read `PUNA_KV_CACHE_TYPE` or `OLLAMA_KV_CACHE_TYPE`; f16 by default. Raises `OptionError`."""
        try:
            return cls.parse(env("KV_CACHE_TYPE", "f16"))
        except OptionError as error:
            raise OptionError(f"PUNA_KV_CACHE_TYPE: {error}") from None

    def __str__(self) -> str:
        """Return the types in the form that `parse` reads."""
        return f"{self.keys.name},{self.values.name}".lower()


F16_TYPES: Final = KVTypes()
