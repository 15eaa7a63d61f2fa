"""Operations of a GPU's backend on tensors of the CPU, for tests that compare with torch."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from puna.ops import ExpertNetworks
from puna.ops.gpu.storage import DeviceStorage
from puna.ops.gpu.torch_backend import TorchBackend
from tests.ops.torch_ops import TorchOps, kv_shape, kv_type


class DeviceOps(TorchOps):
    """The operations of a backend whose arrays are tensors of a device.

    Tensors that an operation writes in place, and those given as storage, are updated after the call.
    """

    backend: TorchBackend

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            there = list(map(self._there, args))
            result = found(*there, **{key: self._there(value) for key, value in named.items()})
            if name.endswith("_"):
                args[0].copy_(there[0])
            return self._here(result)

        return call

    def numpy(self, array: Any) -> Any:
        return array.numpy()

    def attention(self, q: Tensor, keys: Any, values: Any, *others: Any, **named: Any) -> Tensor:
        return self.__getattr__("attention")(q, self.stored(keys), self.stored(values), *others, **named)

    def choose_cells(self, q: Tensor, weights: Tensor, keys: Any, *others: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.__getattr__("choose_cells")(q, weights, self.stored(keys), *others)
        return found

    def choose_blocks(self, q: Tensor, keys: Any, *others: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.__getattr__("choose_blocks")(q, self.stored(keys), *others)
        return found

    def pool_groups(self, rows: Any, *others: Any, **named: Any) -> Tensor:
        found: Tensor = self.__getattr__("pool_groups")(self.stored(rows), *others, **named)
        return found

    def store_rows(self, target: Any, cells: Tensor, rows: Tensor) -> None:
        storage = self.stored(target)
        self.__getattr__("store_rows")(storage, cells, rows)
        self._take_back(storage, target)

    def short_conv(self, *args: Any, **named: Any) -> Tensor:
        return self._with_states("short_conv", 3, args, named)

    def pool_recent(self, *args: Any) -> Tensor:
        return self._with_states("pool_recent", 3, args, {})

    def ngram_rows(self, *args: Any) -> Tensor:
        return self._with_states("ngram_rows", 5, args, {})

    def selective_scan(self, *args: Any) -> Tensor:
        return self._with_states("selective_scan", 6, args, {})

    def _with_states(self, name: str, place: int, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        given, states = list(args), named.get("states")
        if states is None:
            states = given[place]
            storage = given[place] = self.stored(states)
        else:
            storage = self.stored(states)
            named = named | {"states": storage}
        result: Tensor = self.__getattr__(name)(*given, **named)
        self._take_back(storage, states)
        return result

    def stored(self, held: Any) -> Any:
        """Return storage with the contents of a tensor laid out like it."""
        if not isinstance(held, Tensor):
            return held
        rows, *shape = kv_shape(held)
        storage = DeviceStorage(kv_type(held), rows, tuple(shape), self.backend.place)
        storage.provide(rows)
        every = torch.arange(rows).numpy()
        storage.write(every, (held.view(torch.int16) if held.dtype is torch.bfloat16 else held).numpy())
        return storage

    def _take_back(self, storage: DeviceStorage, held: Any) -> None:
        if isinstance(held, Tensor):
            found = torch.from_numpy(storage.read(torch.arange(len(held)).numpy()))
            held.copy_(found.view(torch.bfloat16) if held.dtype is torch.bfloat16 else found)

    def _there(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.backend.place)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._there, value))
        if isinstance(value, ExpertNetworks):
            names = ("gate_bias", "up_bias", "down_bias")
            return dataclasses.replace(value, **{name: self._there(getattr(value, name)) for name in names})
        return value

    def _here(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.cpu()
        return type(value)(map(self._here, value)) if isinstance(value, (list, tuple)) else value


#: Plain torch on its CPU device.
TORCH = DeviceOps(TorchBackend(torch.device("cpu")))
