"""Ways to tamper with the metadata and tensors of a model that was valid."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterable, Sequence

import numpy as np

from puna.gguf import GGMLType
from puna.gguf.reader import full_key, is_common
from tests.fuzz.hostile_bytes import WORDS, damaged
from tests.fuzz.invented import Model, Raw, Tensor, encoded
from tests.gguf import gguf_bytes as raw

_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e-38, 1e30, 1e38, 1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "",
    "x",
    "linear",
    "yarn",
    "longrope",
    "none",
    "llama",
    "bert",
    "é" * 99,
    "a" * 100_000,
    "\0",
    "{{ 1 }}",
)


def tamper(
    dice: random.Random, model: Model, architecture: str, keys: Sequence[str], tensors: Sequence[str]
) -> None:
    """Change `model` in one to three places.

    `keys`, without the architecture's name, and `tensors` are names that it may get.
    """
    for _ in range(dice.randint(1, 3)):
        match dice.randrange(len(_CHANGES) + 2):
            case 0:
                model.keys[full_key(dice.choice(keys), architecture)] = _value(dice)
            case 1:
                _add_tensor(dice, model, tensors)
            case other:
                _CHANGES[other - 2](dice, model)


def without_architecture(keys: Iterable[str]) -> list[str]:
    """Return the keys without the architectures' names, each once and sorted."""
    return sorted({key if is_common(key) else key.partition(".")[2] for key in keys})


def encoded_at_times_damaged(dice: random.Random, model: Model) -> bytes:
    """Return the file of `model`; one of five has damaged bytes."""
    content = model.encode()
    return damaged(dice, content, most=3) if dice.random() < 0.2 else content


def _value(dice: random.Random) -> Raw:
    """Return a random metadata value of any type."""
    kind = dice.choice((raw.UINT8, raw.UINT32, raw.INT32, raw.INT64, raw.UINT64, raw.FLOAT32, raw.FLOAT64,
                        raw.BOOL, raw.STRING, raw.ARRAY))  # fmt: skip
    match kind:
        case raw.FLOAT32 | raw.FLOAT64:
            with np.errstate(over="ignore"):
                number = np.float64(dice.choice(_FLOATS)).astype("f4" if kind == raw.FLOAT32 else "f8")
            return Raw(kind, number.tobytes())
        case raw.STRING:
            return Raw(kind, raw.string(dice.choice(_TEXTS)))
        case raw.BOOL:
            return Raw(kind, bytes([dice.choice((0, 1, 2, 255))]))
        case raw.ARRAY:
            each = _value(dice)
            count = dice.choice((0, 1, 2, 3, 1000))
            if each.kind == raw.ARRAY:
                return each
            return Raw(kind, struct.pack("<IQ", each.kind, count) + each.data * count)
    size = {raw.UINT8: 1, raw.UINT32: 4, raw.INT32: 4}.get(kind, 8)
    return Raw(kind, (dice.choice(WORDS) % 2 ** (8 * size)).to_bytes(size, "little"))


def _change_key(dice: random.Random, model: Model) -> None:
    model.keys[dice.choice(sorted(model.keys))] = _value(dice)


def _change_number(dice: random.Random, model: Model) -> None:
    """Replace a number by another of the same type, so that it is accepted at face value."""
    name = dice.choice(sorted(model.keys))
    value = model.keys[name]
    match value:
        case bool():
            model.keys[name] = not value
        case int():
            number = dice.choice((*WORDS, value + 1, max(value - 1, 0), 2 * value)) % 2**32
            model.keys[name] = Raw(dice.choice((raw.UINT32, raw.INT32)), struct.pack("<I", number))
        case float():
            model.keys[name] = Raw(raw.FLOAT64, struct.pack("<d", dice.choice((*_FLOATS, -value, 1 + value))))


def _change_list(dice: random.Random, model: Model) -> None:
    names = [name for name, value in sorted(model.keys.items()) if isinstance(value, list)]
    if not names:
        return
    name = dice.choice(names)
    items = list(model.keys[name])
    at = dice.randrange(len(items))
    match dice.randrange(5):
        case 0:
            del items[at:]
        case 1:
            items[at:at] = [items[dice.randrange(len(items))]] * dice.choice((1, 1000))
        case 2:
            dice.shuffle(items)
        case 3:
            items = [items[at]] * len(items)
        case 4:
            other = {str: _TEXTS, float: (-1e38, 0.0, 1e38), int: WORDS, bool: (True,)}[type(items[at])]
            items[at] = dice.choice(other)
            if isinstance(items[at], int):
                items[at] %= 2**32
    if items:
        model.keys[name] = items
    else:
        model.keys[name] = Raw(raw.ARRAY, struct.pack("<IQ", encoded(model.keys[name][0])[0], 0))


def _drop_key(dice: random.Random, model: Model) -> None:
    del model.keys[dice.choice(sorted(model.keys))]


def _drop_tensor(dice: random.Random, model: Model) -> None:
    del model.tensors[dice.choice(sorted(model.tensors))]


def _rename_tensor(dice: random.Random, model: Model) -> None:
    name = dice.choice(sorted(model.tensors))
    other = dice.choice(
        (*sorted(model.tensors), "blk.0.odd.weight", "blk.99999999999.x", "rope_freqs.weight")
    )
    model.tensors[other] = model.tensors.pop(name)


def _add_tensor(dice: random.Random, model: Model, names: Sequence[str]) -> None:
    length = dice.choice((1, 8, 16, 64))
    name = dice.choice((*sorted(model.tensors), *names))
    name = name.removesuffix(".weight") + dice.choice((".bias", ".weight", ""))
    values = np.full(length, dice.choice((0, 1, np.nan, np.inf, -1)), np.float32)
    model.tensors[name] = Tensor((length,), GGMLType.F32, values.tobytes())


def _change_shape(dice: random.Random, model: Model) -> None:
    name = dice.choice(sorted(model.tensors))
    tensor = model.tensors[name]
    shape = list(tensor.shape)
    match dice.randrange(3):
        case 0:
            shape[dice.randrange(len(shape))] = dice.choice(WORDS)
        case 1:
            dice.shuffle(shape)
        case 2:
            shape = [1] * dice.randint(0, 3) + shape
    model.tensors[name] = Tensor(tuple(shape), tensor.type, tensor.data)


def _change_type(dice: random.Random, model: Model) -> None:
    name = dice.choice(sorted(model.tensors))
    tensor = model.tensors[name]
    kind = dice.choice(list(GGMLType))
    count = math.prod(tensor.shape)
    # An earlier change may have made the shape enormous.
    size = min(kind.nbytes(count - count % kind.block_size), 32 * len(tensor.data))
    data = (tensor.data * (size // max(len(tensor.data), 1) + 1))[:size]
    model.tensors[name] = Tensor(tensor.shape, kind, data)


def _change_data(dice: random.Random, model: Model) -> None:
    name = dice.choice(sorted(model.tensors))
    tensor = model.tensors[name]
    data = dice.choice((b"\0", b"\xff", b"\x7f", dice.randbytes(64))) * len(tensor.data)
    model.tensors[name] = Tensor(tensor.shape, tensor.type, data[: len(tensor.data)])


_CHANGES = (
    _change_key, _change_number, _change_number, _change_number, _change_list, _drop_key, _drop_tensor,
    _rename_tensor, _change_shape, _change_type, _change_data,
)  # fmt: skip
