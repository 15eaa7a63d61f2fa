"""What sentence-transformers puts after a model: how its tokens' vectors become one, and linears."""

from __future__ import annotations

from typing import Any, Final

from puna.convert.checkpoint import Checkpoint
from puna.errors import ConversionError, shown

#: As GGUF numbers them.
_POOLINGS: Final = {
    "pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3,
}  # fmt: skip
_NAMES: Final = {"mean": 1, "cls": 2, "lasttoken": 3}


def module_metadata(checkpoint: Checkpoint) -> dict[str, int]:
    """`pooling_type` and the sizes of linears, of the modules that the folder lists.

    Raises ConversionError for another pooling, and for a linear with an activation.
    """
    found: dict[str, int] = {}
    for kind, path in checkpoint.modules:
        settings = checkpoint.json(f"{path}/config.json")
        if kind == "Pooling":
            found.setdefault("pooling_type", _pooling(path, settings))
        if kind == "Dense":
            activation = str(settings.get("activation_function") or "Identity")
            if not activation.endswith("Identity"):
                raise ConversionError(
                    f"{path}/config.json: a linear with the activation {shown(activation)} is not supported"
                )
            rows, columns = checkpoint.shape(f"{path}.linear.weight")
            number = path.partition("_")[0]
            found |= {f"dense_{number}_feat_in": columns, f"dense_{number}_feat_out": rows}
    return found


def _pooling(path: str, settings: dict[str, Any]) -> int:
    found = next((number for key, number in _POOLINGS.items() if settings.get(key)), None)
    found = found or _NAMES.get(str(settings.get("pooling_mode")))
    if found is None:
        raise ConversionError(f"{path}/config.json: vectors can be pooled by mean, cls or lasttoken only")
    return found
