"""Typed access to a file's metadata, with errors that name the key."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from puna.errors import ModelError, shown

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: No model has a size larger than this; a larger number means a damaged file.
_ABSURD = 2**31
#: The range of sensible floats: products of several of them still fit float32.
_TINY, _HUGE = 1e-30, 1e30
#: More than the layers of any model.
_MAX_LAYERS = 1 << 16
#: The start of the name of a layer's tensor.
LAYER = re.compile(r"blk\.(\d{1,9})\.")


def required(file: GGUFFile, key: str, default: int = 0) -> int:
    """Return the positive integer `key`.

    Raises `ModelError` if it is not positive, or missing without a default.
    """
    value = scalar(file, key, default)
    if value <= 0:
        if file.get(key) is None:
            raise missing(file, key)
        raise invalid(file, key, f"should be positive, but is {value}")
    return value


def missing(file: GGUFFile, key: str) -> ModelError:
    """Return the error for a required `key` that is missing."""
    return ModelError(f"{file.path}: metadata key '{file.architecture}.{key}' is missing")


def invalid(file: GGUFFile, key: str, complaint: str) -> ModelError:
    """Return the error for an invalid `key`; `complaint` continues the sentence and shows the value."""
    return ModelError(f"{file.path}: '{file.architecture}.{key}' {complaint}")


def first_of(file: GGUFFile, *keys: str) -> str:
    """Return the first of `keys` that the file has, or the first if it has none.

    Writers use different names.
    """
    return next((key for key in keys if file.get(key) is not None), keys[0])


def scalar(file: GGUFFile, key: str, default: int) -> int:
    """Return the integer `key`; an array of equal values counts as that value.

    Raises `ModelError` for other types, different values per layer, and absurd sizes.
    """
    value: Any = file.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float | str):
        values = set(value[:_MAX_LAYERS])
        if len(values) != 1 or len(value) > _MAX_LAYERS:
            raise invalid(file, key, f"should not differ between layers, but is {shown(value[:_MAX_LAYERS])}")
        value = values.pop()
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < _ABSURD:
        raise invalid(file, key, f"should be a size, but is {shown(value)}")
    return value


def per_layer(
    file: GGUFFile, key: str, layers: int, default: int | Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the integers `key`, one per layer; a single one applies to all `layers`.

    Raises `ModelError` if the key is missing without a `default`, has another number of values or another
    type, or holds absurd sizes.
    """
    value: Any = file.get(key)
    if value is None:
        value = default
    if value is None:
        raise missing(file, key)
    values: Sequence[Any] = [value] * layers if isinstance(value, int | float | str) else value
    if len(values) != layers:
        raise invalid(file, key, f"has {len(values)} values for {layers} layers")
    for each in values:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < _ABSURD:
            raise invalid(file, key, f"should be sizes, but has {shown(each)}")
    return tuple(values)


def whole_numbers(file: GGUFFile, key: str, count: int) -> tuple[int, ...]:
    """Return the `count` integers `key`, which are at least 0 and may have 63 bits.

    Raises `ModelError` if the key is missing, has another number of values or another type.
    """
    values: Any = file.get(key)
    if values is None:
        raise missing(file, key)
    if isinstance(values, str | int | float) or len(values) != count:
        raise invalid(file, key, f"should have {count} numbers, not {shown(values)}")
    for each in values:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < 2**63:
            raise invalid(file, key, f"should have whole numbers, but has {shown(each)}")
    return tuple(values)


def number(file: GGUFFile, key: str, default: float) -> float:
    """Return the float `key`.

    Raises `ModelError` for other types, and for numbers no model can compute with.
    """
    value: Any = file.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _HUGE:
        raise invalid(file, key, f"should be a number, but is {shown(value)}")
    return float(value)


def positive(file: GGUFFile, key: str, default: float) -> float:
    """Return the float `key`. Raises `ModelError` unless it is above 0."""
    value = number(file, key, default)
    if not value >= _TINY:
        raise invalid(file, key, f"should be above 0, but is {value}")
    return value


def limit(file: GGUFFile, key: str, default: float) -> float:
    """Return the float `key`, where 0 means no limit. Raises `ModelError` unless it is at least 0."""
    value = number(file, key, default)
    if value and not value >= _TINY:
        raise invalid(file, key, f"should be 0, which means none, or above, but is {value}")
    return value


def limits(file: GGUFFile, key: str, layers: int) -> tuple[float, ...]:
    """Return the floats `key`, one per layer, where 0 means no limit; a single one applies to all `layers`.

    A missing key means no limits. Raises `ModelError` for negative or absurd limits, or another number of
    them.
    """
    found: Any = file.get(key, 0.0)
    each = [found] * layers if isinstance(found, int | float) else list(found)
    if len(each) != layers or not all(_is_limit(value) for value in each):
        raise invalid(file, key, f"should have a limit for each of the {layers} layers, not {shown(found)}")
    return tuple(float(value) for value in each)


def _is_limit(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == 0 or _TINY <= value <= _HUGE


def flag(file: GGUFFile, key: str, default: bool) -> bool:
    """Return the bool `key`. Raises `ModelError` for other types."""
    value: Any = file.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(file, key, f"should be true or false, but is {shown(value)}")
    return value


def flags(file: GGUFFile, key: str, layers: int) -> tuple[bool, ...]:
    """Return the bools `key`, one per layer.

    Raises `ModelError` if the key is missing, and for other types or another number of them.
    """
    values: Any = file.get(key)
    if values is None:
        raise missing(file, key)
    if isinstance(values, str | int | float) or len(values) != layers:
        raise invalid(
            file, key, f"should have true or false for each of the {layers} layers, not {shown(values)}"
        )
    for each in values:
        if each not in (False, True):
            raise invalid(file, key, f"should have true or false for each layer, but has {shown(each)}")
    return tuple(map(bool, values))


def table_rows(file: GGUFFile, tensor: str) -> int:
    """Return the number of rows of `tensor`, or 0 if it is missing, which loading will report."""
    found = file.tensors.get(tensor)
    return found.shape[0] if found else 0


def check_positions(file: GGUFFile, positions: int) -> None:
    """Raise `ModelError` if the context is longer than the table of `positions` learned vectors."""
    context = required(file, "context_length", max(positions, 1))
    if context > positions:
        raise invalid(
            file, "context_length", f"is {context}, but there are only {positions} position vectors"
        )


def block_count(file: GGUFFile, prefix: str = "blk", *, key: str = "block_count", default: int = 0) -> int:
    """Return the number of layers, whose tensors are named `prefix`. Raises `ModelError`."""
    count = required(file, key, default)
    layer = LAYER if prefix == "blk" else re.compile(rf"{re.escape(prefix)}\.(\d{{1,9}})\.")
    layers = {int(found[1]) for found in map(layer.match, file.tensors) if found}
    last = max(layers, default=-1)
    if count > last + 1:
        raise invalid(file, key, f"is {count}, but there are tensors of only {last + 1} layers")
    if count <= last:
        raise invalid(file, key, f"is {count}, but there are tensors of layer {last}")
    if count > _MAX_LAYERS:
        raise invalid(file, key, f"is {count}, and at most {_MAX_LAYERS} layers are supported")
    if len(layers) < count:
        bare = next(index for index in range(count) if index not in layers)
        raise invalid(file, key, f"is {count}, but there are no tensors of layer {bare}")
    return count


def check_extent(file: GGUFFile, tensor: str, axis: int, sizes: Mapping[str, int]) -> None:
    """Raise `ModelError` unless the size of `tensor` along `axis` is the product of `sizes`.

    `sizes` are by the keys they were read from, which the error names. A missing tensor is accepted.
    """
    found = file.tensors.get(tensor)
    if found is None or len(found.shape) <= axis or found.shape[axis] == math.prod(sizes.values()):
        return
    names = " x ".join(f"'{file.architecture}.{key}'" for key in sizes)
    values = " x ".join(map(str, sizes.values()))
    shape = "x".join(map(str, found.shape))
    raise ModelError(f"{file.path}: {names} is {values}, but tensor '{tensor}' has {shape} values")
