"""How the vectors of a text's tokens become one, as sentence-transformers says it beside a model."""

from __future__ import annotations

import json
from typing import Any, Final

from puna.convert.checkpoint import Checkpoint
from puna.errors import ConversionError, shown

#: As GGUF numbers them.
_KINDS: Final = {
    "pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3,
}  # fmt: skip
_NAMES: Final = {"mean": 1, "cls": 2, "lasttoken": 3}


def pooling(checkpoint: Checkpoint) -> int | None:
    """`pooling_type`, or None if the folder says nothing. Raises ConversionError for another way."""
    try:
        modules: Any = json.loads(checkpoint.text("modules.json") or "[]")
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"modules.json cannot be read: {shown(str(error))}") from None
    for module in modules if isinstance(modules, list) else ():
        match module:
            case {"type": str(kind), "path": str(path)} if kind.endswith("Pooling") and _is_inside(path):
                settings = checkpoint.json(f"{path}/config.json")
                found = next((number for key, number in _KINDS.items() if settings.get(key)), None)
                found = found or _NAMES.get(str(settings.get("pooling_mode")))
                if found is None:
                    raise ConversionError(
                        f"{path}/config.json: vectors can be pooled by mean, cls or lasttoken only"
                    )
                return found
    return None


def _is_inside(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/") and "\\" not in path and "\0" not in path
