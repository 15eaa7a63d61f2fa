"""A backend whose arrays can be read only through it, like those of another device.

It computes with the reference. Its arrays refuse everything that is not in `puna.ops.Array`, operations do
not see indices that were not uploaded, and packed weights are no longer the file's bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from puna.gguf import GGMLType
from puna.ops import Backend, ExpertNetworks, ExpertWeights, Storage, Weight, backend_named
from puna.ops.host import HostStorage

_reference = backend_named("reference")


class OddArray:
    """An array whose values are out of reach."""

    __array_ufunc__ = None  # numpy must not try
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: NDArray[Any]) -> None:
        self.__values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return self.__values.shape

    def __len__(self) -> int:
        return len(self.__values)

    def __getitem__(self, index: Any) -> OddArray:
        parts = index if isinstance(index, tuple) else (index,)
        assert all(isinstance(part, (int, slice, OddArray)) for part in parts), f"an index of {index!r}"
        return OddArray(np.asarray(self.__values[tuple(_within(part) for part in parts)]))

    def __add__(self, other: Any) -> OddArray:
        return OddArray(self.__values + _operand(other))

    def __mul__(self, other: Any) -> OddArray:
        return OddArray(self.__values * _operand(other))

    __radd__, __rmul__ = __add__, __mul__

    def reshape(self, *shape: Any) -> OddArray:
        return OddArray(self.__values.reshape(*shape))

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("only the backend of an array can read its values")

    __array__ = __iter__ = __bool__ = __int__ = __float__ = __index__ = __contains__ = __setitem__ = _refuse
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse  # type: ignore[assignment]


def _within(value: Any) -> Any:
    """Return the values of an array; return anything else as it is."""
    return value._OddArray__values if isinstance(value, OddArray) else value


def _operand(value: Any) -> Any:
    assert isinstance(value, (int, float, OddArray)), f"{type(value).__name__} beside an array"
    return _within(value)


class OddIndexBuffer:
    """Indices on the host, and the copy that operations see, which is invalid at first."""

    mirrored = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.host = np.zeros(shape, np.int32)
        self._there = np.full(shape, -7, np.int32)
        self.array = OddArray(self._there)

    def upload(self, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        for begin, end in [(0, self.host.size)] if ranges is None else ranges:
            self._there.reshape(-1)[begin:end] = self.host.reshape(-1)[begin:end]


class OddNumberBuffer:
    """Numbers on the host, and the copy that operations see, which is invalid at first."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.host = np.zeros(shape, np.float32)
        self._there = np.full(shape, np.nan, np.float32)
        self.array = OddArray(self._there)

    def upload(self) -> None:
        self._there[:] = self.host


class OddStorage(Storage):
    """Storage whose rows only its own methods reach, and only those that were provided."""

    def __init__(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> None:
        super().__init__(kind, rows, row_shape)
        self.inner = HostStorage(kind, rows, row_shape)
        self.used = 0

    def provide(self, rows: int) -> None:
        self.used = max(self.used, rows)
        self.inner.provide(rows)

    def give_back(self, begin: int, end: int) -> None:
        self.inner.give_back(begin, end)
        self.used = min(self.used, begin)

    def check(self, rows: Any) -> None:
        """Fail if any of `rows` lacks memory; -1 is no row."""
        assert not np.size(rows) or int(np.max(rows)) < self.used, f"{np.max(rows)} of {self.used} rows"

    def copy(self, sources: NDArray[np.integer], targets: NDArray[np.integer]) -> None:
        self.check(sources)
        self.check(targets)
        self.inner.copy(sources, targets)

    def read(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        self.check(rows)
        return self.inner.read(rows)

    def write(self, rows: NDArray[np.integer], stored: NDArray[Any]) -> None:
        self.check(rows)
        self.inner.write(rows, stored)

    def numbers(self, rows: NDArray[np.integer]) -> OddArray:
        self.check(rows)
        return OddArray(self.inner.numbers(rows))

    def put(self, rows: NDArray[np.integer], numbers: OddArray) -> None:  # type: ignore[override]
        assert isinstance(numbers, OddArray)
        self.check(rows)
        self.inner.put(rows, _within(numbers))

    def by_head(self) -> OddStorage:
        found = copy.copy(self)
        found.inner = self.inner.by_head()
        found.shape, found.used = found.inner.shape, self.used * self.shape[1]
        return found

    def close(self) -> None:
        self.inner.close()


def _given(value: Any) -> Any:
    """Return an argument in the form the reference takes."""
    match value:
        case OddArray():
            return _within(value)
        case OddStorage():
            return value.inner
        case Weight():
            return value.packed or value
        case ExpertWeights():
            return ExpertWeights(_given(value.weight), value.shape[0])
        case ExpertNetworks():
            parts = (value.gate, value.up, value.down)
            weights = [part and _given(part) for part in parts]
            biases = [_given(bias) for bias in (value.gate_bias, value.up_bias, value.down_bias)]
            return ExpertNetworks(*weights, *biases, value.activation, value.scale_inputs)
        case np.ndarray() | Storage():
            raise TypeError(f"{type(value).__name__} is not of this backend")
        case list() | tuple():
            return type(value)(map(_given, value))
    return value


def _got(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return OddArray(value)
    return type(value)(map(_got, value)) if isinstance(value, (list, tuple)) else value


def _operation(name: str) -> Callable[..., Any]:
    compute = getattr(_reference, name)

    def call(self: object, *args: Any, **named: Any) -> Any:
        return _got(compute(*map(_given, args), **{key: _given(value) for key, value in named.items()}))

    return call


def _check_states(given: Sequence[Any]) -> None:
    """Fail if states that rows read or write lack memory."""
    states, _, sources, targets = given[:4]
    states.check(_within(sources))
    states.check(_within(targets))


_short_conv, _pool_recent, _linear_attention, _selective_scan, _ngram_rows = map(
    _operation, ("short_conv", "pool_recent", "linear_attention", "selective_scan", "ngram_rows")
)


class OddBackend(Backend):
    name = "odd"
    device = "Mars"

    def array(self, values: NDArray[Any]) -> OddArray:
        assert isinstance(values, np.ndarray)
        return OddArray(values.copy())

    def numpy(self, array: OddArray) -> NDArray[Any]:  # type: ignore[override]
        assert isinstance(array, OddArray)
        found = _within(array).copy()
        found.flags.writeable = False
        return found

    def index_buffer(self, *shape: int) -> OddIndexBuffer:  # type: ignore[override]
        return OddIndexBuffer(shape)

    def number_buffer(self, *shape: int) -> OddNumberBuffer:  # type: ignore[override]
        return OddNumberBuffer(shape)

    def store_rows(self, target: OddStorage, cells: OddArray, rows: OddArray) -> None:  # type: ignore[override]
        target.check(_within(cells))
        target.inner.put(_within(cells), _within(rows))

    def short_conv(self, *args: Any, **named: Any) -> OddArray:
        _check_states(args[3:])
        return _short_conv(self, *args, **named)  # type: ignore[no-any-return]

    def pool_recent(self, *args: Any) -> OddArray:
        _check_states(args[3:])
        return _pool_recent(self, *args)  # type: ignore[no-any-return]

    def linear_attention(self, *args: Any, **named: Any) -> OddArray:
        _check_states(args[6:])
        return _linear_attention(self, *args, **named)  # type: ignore[no-any-return]

    def selective_scan(self, *args: Any) -> OddArray:
        _check_states(args[6:])
        return _selective_scan(self, *args)  # type: ignore[no-any-return]

    def ngram_rows(self, *args: Any) -> OddArray:
        _check_states(args[5:])
        return _ngram_rows(self, *args)  # type: ignore[no-any-return]

    def concatenate(self, arrays: Sequence[OddArray]) -> OddArray:  # type: ignore[override]
        return OddArray(np.concatenate(list(map(_given, arrays))))

    def pack(self, weight: Weight) -> None:
        if weight.packed is None:
            weight.packed = Weight(weight.name, weight.bytes().copy(), weight.type, weight.shape)
            weight.drop_data()

    def packed_bytes(self, type: GGMLType, shape: tuple[int, ...]) -> int:
        return type.nbytes(shape[0] * shape[1])

    def storage(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> OddStorage:
        return OddStorage(kind, rows, row_shape)


for _name in Backend.__abstractmethods__:
    if _name not in vars(OddBackend):
        setattr(OddBackend, _name, _operation(_name))
OddBackend.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
