"""The adapters of a loaded model: what they add to its linears, and which of them a request asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from puna.errors import ModelError, RequestError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, open_gguf
from puna.model.adapters.pairs import Pairs, read_gguf_adapter
from puna.model.adapters.peft import CONFIG, WEIGHTS, read_peft_adapter
from puna.nn.adapters import LowRank, RowScales
from puna.nn.layers import Linear, StackedLinear
from puna.nn.module import Module
from puna.ops import Backend
from puna.options import LARGEST_SCALE, AdapterFile, AdapterScale, is_scale

#: Adapters of one model.
MOST_ADAPTERS: Final = 64

#: The adapters of a request by their numbers, ascending, each with its scale, which is not 0.
Uses = tuple[tuple[int, float], ...]


class Adapters:
    """What a model was loaded with. Nothing of it changes afterwards but `rows`, which is each pass's own."""

    def __init__(self, ops: Backend) -> None:
        self.rows = RowScales(ops)
        self.names: list[str] = []
        self._scales: list[float] = []
        self._digests: list[str] = []

    def add(self, file: AdapterFile, pairs: Pairs, model: Module) -> None:
        """Put the adapter `pairs`, which came from `file`, beside the weights of `model`.

        Raises `ModelError` when its shapes or its tensors are not those of the model.
        """
        number, name = len(self.names), file.name or _name_of(Path(file.path))
        if name in self.names:
            raise ModelError(f"{file.path}: there are two adapters of the name {shown(name)}; rename one")
        if not is_scale(file.scale):
            raise ModelError(
                f"{file.path}: the scale {file.scale} is not between {-LARGEST_SCALE:g} and {LARGEST_SCALE:g}"
            )
        linears = _linears(model)
        for tensor, pair in pairs.items():
            _check(file.path, tensor, pair.a.shape, pair.b.shape, linears.get(tensor, []))
        digest = hashlib.sha256()
        for tensor, pair in sorted(pairs.items()):
            for each in linears[tensor]:
                if each.low_rank is None:
                    each.low_rank = LowRank(each.ops, self.rows)
                each.low_rank.add(number, tensor, pair.a, np.ascontiguousarray(pair.b[each.rows]))
            for part in (tensor.encode(), pair.a.tobytes(), pair.b.tobytes()):
                digest.update(part)
        self.names.append(name)
        self._scales.append(file.scale)
        self._digests.append(digest.hexdigest())

    def uses(self, wanted: Sequence[AdapterScale] | None) -> Uses:
        """What a request that wants this is computed with; None: what the model was loaded for.

        As in llama.cpp, an adapter that is not named counts nothing. Raises `RequestError`.
        """
        if wanted is None:
            return tuple((i, scale) for i, scale in enumerate(self._scales) if scale)
        found: dict[int, float] = {}
        for one in wanted:
            number = self._number(one)
            if number in found:
                raise RequestError(f"lora: adapter {shown(self.names[number])} is named twice")
            if not is_scale(one.scale):
                raise RequestError(
                    f"lora: the scale {one.scale} is not between {-LARGEST_SCALE:g} and {LARGEST_SCALE:g}"
                )
            found[number] = one.scale
        return tuple((number, scale) for number, scale in sorted(found.items()) if scale)

    def identity(self, uses: Uses) -> str:
        """Tells apart what is computed with adapters, in any process; empty without any."""
        return " ".join(f"{self._digests[number]}*{scale!r}" for number, scale in uses)

    def _number(self, wanted: AdapterScale) -> int:
        known = ", ".join(self.names) or "none"
        if wanted.name is not None:
            if wanted.name not in self.names:
                raise RequestError(f"lora: there is no adapter {shown(wanted.name)}; the model has {known}")
            return self.names.index(wanted.name)
        if wanted.id is None or not 0 <= wanted.id < len(self.names):
            raise RequestError(
                f"lora: there is no adapter with the id {shown(wanted.id)}; the model has {len(self.names)} "
                f"({known}), counted from 0"
            )
        return wanted.id


def read_adapter(path: Path, model: GGUFFile) -> Pairs:
    """The adapter at `path`, a GGUF file or what PEFT saves, for the model in `model`.

    Raises `GGUFError`, `ModelError`, `UnsupportedModelError`.
    """
    if path.name == WEIGHTS or path.is_dir():
        folder = path if path.is_dir() else path.parent
        return read_peft_adapter(folder / CONFIG, folder / WEIGHTS, model)
    if not path.is_file():
        raise ModelError(f"adapter {path} does not exist")
    return read_gguf_adapter(path, model.architecture)


def adapter_bytes(path: Path) -> int:
    """Memory the adapter at `path` takes. Raises `GGUFError`."""
    weights = path / WEIGHTS if path.is_dir() else path
    if weights.name == WEIGHTS:
        return 2 * weights.stat().st_size if weights.is_file() else 0  # which is said when it is read
    if not path.is_file():
        return 0
    with open_gguf(path) as file:
        return 4 * file.parameter_count


def load_adapters(files: Sequence[AdapterFile], every: Sequence[Pairs], model: Module) -> Adapters:
    """The adapters `every` of `files` beside the weights of `model`. Raises `ModelError`."""
    adapters = Adapters(model.ops)
    for file, pairs in zip(files, every, strict=True):
        adapters.add(file, pairs, model)
    return adapters


def check_count(files: Sequence[AdapterFile]) -> None:
    """Raises `UnsupportedModelError` for more adapters than a model may have."""
    if len(files) > MOST_ADAPTERS:
        raise UnsupportedModelError(f"{len(files)} adapters; a model can have at most {MOST_ADAPTERS}")


def _name_of(path: Path) -> str:
    """What the adapter of a file is called that has no other name."""
    return path.parent.name if path.name == WEIGHTS else path.stem if path.suffix == ".gguf" else path.name


def _check(path: str, tensor: str, a: tuple[int, ...], b: tuple[int, ...], linears: Sequence[Linear]) -> None:
    if not linears:
        raise ModelError(
            f"{path}: the adapter changes {shown(tensor)}, which the model does not have as a matrix that "
            "can be changed; use it with the model it was trained on"
        )
    columns = linears[0].weight.shape[1]
    rows = sum(each.weight.shape[0] for each in linears)
    if (a[1], b[0]) != (columns, rows):
        raise ModelError(
            f"{path}: '{tensor}.lora_a' is {list(a)} and '.lora_b' {list(b)}; beside a weight of "
            f"[{rows}, {columns}] they should be [rank, {columns}] and [{rows}, rank]: use the adapter with "
            "the model it was trained on"
        )


def _linears(model: Module) -> dict[str, list[Linear]]:
    """The linears of a model by the tensors they are made of, several where they share the rows of one.

    Embeddings that are also the output are left out: an adapter would have to change both.
    """
    found: dict[str, dict[int, Linear]] = {}
    for linear in _of(model):
        found.setdefault(linear.weight.name, {})[id(linear)] = linear
    found.pop("token_embd.weight", None)
    lists = {name: list(each.values()) for name, each in found.items()}
    return {
        name: each
        for name, each in lists.items()
        if len(each) == 1 or not any(one.rows == slice(None) for one in each if isinstance(one.rows, slice))
    }


def _of(value: object) -> Iterator[Linear]:
    if isinstance(value, Linear):
        yield value
    elif isinstance(value, StackedLinear):
        yield from value.linears
    elif isinstance(value, list):
        for each in value:
            yield from _of(each)
    elif isinstance(value, Module):
        for each in vars(value).values():
            yield from _of(each)
