"""Model classes by architecture; only the requested module is imported."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import Final

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.errors import UnsupportedModelError, shown
from puna.model.base import TextModel

_LONGEST_NAME: Final = 100  # architectures longer than this are not compared with known ones in full


def model_for(architecture: str) -> type[TextModel]:
    """Return the model class of `architecture`. Raises `UnsupportedModelError` that lists known ones."""
    path = ARCHITECTURES.get(architecture, UNKNOWN).model
    if not path:
        near = get_close_matches(architecture[:_LONGEST_NAME], supported(), n=1)
        nearest = f", the nearest being {near[0]}" if near else ""
        raise UnsupportedModelError(
            f"architecture {shown(architecture)} is not supported; "
            f"supported: {', '.join(supported())}{nearest}"
        )
    module, _, name = path.partition(":")
    model: type[TextModel] = getattr(importlib.import_module(f"puna.model.models.{module}"), name)
    return model


def supported() -> list[str]:
    """Return all supported architectures, sorted."""
    return sorted(name for name, record in ARCHITECTURES.items() if record.model)
