"""Operations on torch tensors, sharing their memory, for tests that compare with torch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops import (
    Backend,
    ExpertNetworks,
    MemoryShape,
    Storage,
    Weight,
    backend_named,
    quantized,
)
from puna.ops.host import HostStorage
from puna.ops.storage import stored_form

_KINDS = {torch.float32: GGMLType.F32, torch.float16: GGMLType.F16, torch.bfloat16: GGMLType.BF16}
_BLOCKS = {34: GGMLType.Q8_0, 18: GGMLType.Q4_0}


class TorchOps:
    """The operations of a backend that computes in this process's memory, taking and returning tensors."""

    def __init__(self, ops: Backend) -> None:
        self.backend = ops

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            given = {key: _given(value) for key, value in named.items()}
            return _got(found(*map(_given, args), **given))

        return call

    def numpy(self, array: Any) -> np.ndarray:
        return self.backend.numpy(_given(array))

    def attention(self, q: Tensor, keys: Any, values: Any, *others: Any, **named: Any) -> Tensor:
        """Run attention; keys and values may be tensors laid out like storage."""
        return self.__getattr__("attention")(q, as_storage(keys), as_storage(values), *others, **named)

    def choose_cells(self, q: Tensor, weights: Tensor, keys: Any, *others: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.__getattr__("choose_cells")(q, weights, as_storage(keys), *others)
        return found

    def choose_blocks(self, q: Tensor, keys: Any, *others: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.__getattr__("choose_blocks")(q, as_storage(keys), *others)
        return found

    def pool_groups(self, rows: Any, *others: Any, **named: Any) -> Tensor:
        found: Tensor = self.__getattr__("pool_groups")(as_storage(rows), *others, **named)
        return found

    def store_rows(self, target: Any, cells: Tensor, rows: Tensor) -> None:
        self.__getattr__("store_rows")(as_storage(target), cells, rows)

    def short_conv(self, *args: Any, **named: Any) -> Tensor:
        if "states" in named:
            return self.__getattr__("short_conv")(**named | {"states": as_storage(named["states"])})
        return self.__getattr__("short_conv")(*args[:3], as_storage(args[3]), *args[4:], **named)

    def pool_recent(self, *args: Any) -> Tensor:
        return self.__getattr__("pool_recent")(*args[:3], as_storage(args[3]), *args[4:])

    def memories(self, numbers: Tensor) -> Storage:
        """Return storage that holds `numbers` [rows, heads, key_dim, value_dim]."""
        rows, *shape = numbers.shape
        storage = self.backend.memories(rows, MemoryShape(*shape))
        storage.provide(rows)
        storage.put(np.arange(rows), self.backend.array(numbers.numpy()))
        return storage

    def numbers(self, storage: Storage) -> Tensor:
        """Return the numbers that storage holds, [rows, *row_shape]."""
        every = np.arange(storage.shape[0])
        return torch.from_numpy(np.array(self.backend.numpy(storage.numbers(every))))

    def ngram_rows(self, *args: Any) -> Tensor:
        return self.__getattr__("ngram_rows")(*args[:5], as_storage(args[5]), *args[6:])

    def selective_scan(self, *args: Any) -> Tensor:
        return self.__getattr__("selective_scan")(*args[:6], as_storage(args[6]), *args[7:])


def on_tensors(ops: Backend) -> TorchOps:
    """Return the operations of any backend, on tensors of the CPU."""
    if ops.name != "gpu":
        return TorchOps(ops)
    from tests.ops.device_ops import DeviceOps  # which needs this module

    return DeviceOps(ops)


REFERENCE = TorchOps(backend_named("reference"))


def cpu() -> TorchOps:
    return TorchOps(backend_named("cpu"))


def weight_of(name: str, values: Tensor) -> Weight:
    return Weight.from_values(name, values.numpy())


def as_storage(held: Any) -> Any:
    """Return storage over a tensor [rows, ...]; the size of byte blocks tells their type."""
    if not isinstance(held, Tensor):
        return held
    storage = object.__new__(HostStorage)
    storage.kind = kv_type(held)
    storage.shape = kv_shape(held)
    storage.stored = _given(held)
    return storage


def kv_type(held: Tensor) -> GGMLType:
    if held.dtype is torch.uint8 and held.dim() > 1:
        return _BLOCKS.get(held.shape[-1], GGMLType.Q8_0)
    return _KINDS.get(held.dtype, GGMLType.F32)


def kv_shape(held: Tensor) -> tuple[int, ...]:
    """Return the shape of the numbers in a tensor laid out like storage."""
    if held.dtype is torch.uint8 and held.dim() > 1:
        return (*held.shape[:-2], held.shape[-2] * 32)
    return tuple(held.shape)


def kv_zeros(kind: GGMLType, cells: int, heads: int, dim: int) -> Tensor:
    dtype, form = stored_form(kind, (heads, dim))
    return _as_floats(torch.from_numpy(np.zeros((cells, *form), dtype)), kind)


def kv_pack(numbers: Tensor, kind: GGMLType) -> Tensor:
    return _as_floats(torch.from_numpy(quantized.pack(numbers.numpy(), kind)), kind)


def kv_unpack(held: Tensor) -> Tensor:
    return torch.from_numpy(quantized.unpack(_given(held), kv_type(held)))


def _as_floats(held: Tensor, kind: GGMLType) -> Tensor:
    return held.view(torch.bfloat16) if kind is GGMLType.BF16 else held


def _given(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.view(torch.uint16).numpy() if value.dtype is torch.bfloat16 else value.numpy()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_given, value))
    if isinstance(value, ExpertNetworks):
        names = ("gate_bias", "up_bias", "down_bias")
        return dataclasses.replace(value, **{name: _given(getattr(value, name)) for name in names})
    return value


def _got(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.asarray(value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_got, value))
    return value
