"""What PEFT's settings say about the results of an adapter; what nobody computes here is refused by name."""

from __future__ import annotations

import re
import time
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import regex  # type: ignore[import-untyped]

from puna.errors import ModelError, UnsupportedModelError, shown

CONFIG: Final = "adapter_config.json"

#: Bytes of settings: a few thousand where each module has its own.
_MOST_BYTES: Final = 1 << 20
#: Characters of a pattern: names of modules, and what leaves them open.
_LONGEST_PATTERN: Final = 1000
#: Seconds that reading and matching all patterns may take. 500 of 500 modules take half a second.
_MOST_SECONDS: Final = 3.0

#: Ways to begin a training that leave the model's weights alone. Others take out of them what they put into
#: the adapter, unless PEFT has undone that when it saved: then the settings say True.
_HARMLESS_BEGINNINGS: Final = (True, False, None, "gaussian", "eva", "orthogonal", "mica")

_Number = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]


class _File(msgspec.Struct):
    """The fields that change results.

    Those that choose modules (`target_modules`, `exclude_modules`, `layers_to_transform`,
    `target_parameters`) and ranks (`rank_pattern`) do not: the tensors say which were chosen. Those of
    `modules_to_save` and `trainable_token_indices` are refused.
    """

    r: Annotated[int, msgspec.Meta(gt=0, lt=1 << 20)] = 8
    lora_alpha: _Number = 8
    use_rslora: bool = False
    alpha_pattern: dict[str, _Number] | None = None
    peft_type: str = "LORA"
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    # What is not supported at all.
    use_dora: bool = False
    use_qalora: bool = False
    fan_in_fan_out: bool = False
    lora_bias: bool = False
    alora_invocation_tokens: Any = None
    layer_replication: Any = None
    use_bdlora: Any = None
    arrow_config: Any = None
    kasa_config: Any = None
    monteclora_config: Any = None


_REFUSED: Final = _File.__struct_fields__[_File.__struct_fields__.index("use_dora") :]


class Settings:
    """The settings of one adapter."""

    def __init__(self, path: Path, fields: _File) -> None:
        self._path = path
        self._fields = fields
        self._left_s = _MOST_SECONDS

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Raises `ModelError` and `UnsupportedModelError`."""
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ModelError(f"{path}: settings of {path.stat().st_size} bytes; at most {_MOST_BYTES}")
            fields = msgspec.json.decode(path.read_bytes(), type=_File)
        except OSError as error:
            raise ModelError(
                f"{path}: cannot be read ({error.strerror}); PEFT saves it beside the tensors"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ModelError(f"{path}: these are no settings of an adapter: {shown(str(error))}") from None
        _check(path, fields)
        return cls(path, fields)

    def factor(self, module: str, rank: int) -> float:
        """What the product of the matrices of a `module` of transformers counts.

        The first of the patterns that match has its alpha, as `get_pattern_key` of PEFT says. Raises
        `ModelError` for one that is no regular expression, and `UnsupportedModelError` for those that take
        too long.
        """
        alpha = next((own for pattern, own in self._alphas if self._matches(pattern, module)), None)
        alpha = self._fields.lora_alpha if alpha is None else alpha
        return alpha / (rank**0.5 if self._fields.use_rslora else rank)

    @cached_property
    def _alphas(self) -> list[tuple[Any, float]]:
        return [(self._compiled(key), own) for key, own in (self._fields.alpha_pattern or {}).items()]

    def _compiled(self, key: str) -> Any:
        began = time.monotonic()
        try:
            if len(key) > _LONGEST_PATTERN or _FUZZY.search(key):
                raise ValueError("too long, or with braces that are no count")
            re.compile(f"(.*\\.)?({key})$")  # of what `regex` knows besides, PEFT knows nothing
            found = regex.compile(f"(.*\\.)?({key})$", cache_pattern=False)
        except (re.error, regex.error, ValueError, OverflowError, RecursionError) as error:
            raise ModelError(
                f"{self._path}: 'alpha_pattern' has {shown(key)}, which is no regular expression of at most "
                f"{_LONGEST_PATTERN} characters: {error}"
            ) from None
        self._took(key, began)
        return found

    def _matches(self, pattern: Any, module: str) -> bool:
        """Whether `pattern` matches. Python's own expressions cannot be stopped, nor let others run."""
        began = time.monotonic()
        try:
            found = pattern.match(module, timeout=self._left_s, concurrent=True)
        except TimeoutError:
            raise self._too_long(pattern.pattern) from None
        self._took(pattern.pattern, began)
        return found is not None

    def _took(self, pattern: str, began: float) -> None:
        self._left_s -= time.monotonic() - began
        if self._left_s <= 0:
            raise self._too_long(pattern)

    def _too_long(self, pattern: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self._path}: the patterns of 'alpha_pattern' take more than {_MOST_SECONDS:g} s to compare "
            f"with the modules, {shown(pattern)} among them; give plain names of modules, and fewer"
        )


#: Braces that mean something to `regex` alone.
_FUZZY: Final = re.compile(r"\{(?!\d*,?\d*\})", re.ASCII)


def _check(path: Path, fields: _File) -> None:
    if fields.peft_type.upper() != "LORA":
        raise UnsupportedModelError(
            f"{path}: an adapter of type {shown(fields.peft_type)}; only LORA is known"
        )
    for setting in _REFUSED:
        if getattr(fields, setting):
            raise UnsupportedModelError(f"{path}: '{setting}' is not supported")
    if fields.bias != "none":
        raise UnsupportedModelError(f"{path}: 'bias' is {shown(fields.bias)}; only 'none' is supported")
    if fields.init_lora_weights not in _HARMLESS_BEGINNINGS:
        raise UnsupportedModelError(
            f"{path}: 'init_lora_weights' is {shown(fields.init_lora_weights)}: such an adapter goes with "
            "weights that the training has changed; let PEFT save it with "
            "path_initial_model_for_weight_conversion, which makes it one for the model's own"
        )
