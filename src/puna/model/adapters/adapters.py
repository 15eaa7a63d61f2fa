"""Adapters of a loaded model: applied to its linears, and chosen by requests."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from puna.errors import ModelError, RequestError, UnsupportedModelError, shown
from puna.gguf import GGUFFile, open_gguf
from puna.model.adapters.pairs import TABLE, Pair, Pairs, is_for_recordings, read_gguf_adapter
from puna.model.adapters.peft import CONFIG, WEIGHTS, read_peft_adapter
from puna.model.base import TextModel
from puna.model.encoder import Encoder
from puna.nn.experts import ExpertLinear
from puna.nn.layers import Embedding, Linear, Rows, StackedLinear
from puna.nn.low_rank import ExpertLowRank, LowRank, LowRankRows, RowScales, StagesRowScales
from puna.nn.module import Module
from puna.options import LARGEST_SCALE, MAX_ADAPTERS, AdapterFile, AdapterScale, is_scale

#: Name of the table of token types.
KINDS: Final = "token_types.weight"

Changed = Linear | ExpertLinear | Embedding
#: Places that an adapter changes with rows of its `b`; several if they share one tensor.
Places = list[tuple[Changed, Rows]]

#: Adapters of a request: (number, nonzero scale) in ascending order.
Uses = tuple[tuple[int, float], ...]


class Adapters:
    """Adapters that a model was loaded with; only `rows` changes afterwards, with each pass."""

    def __init__(self, *stages: TextModel) -> None:
        """The model consists of `stages`, usually one."""
        self.rows = StagesRowScales([stage.row_scales for stage in stages])
        self._encoder = stages[0] if isinstance(stages[0], Encoder) else None
        self._places: dict[str, Places] = {}
        self._row_scales: dict[str, RowScales] = {}  # of the stage that has a tensor
        for stage in stages:
            found = _places(stage)
            self._places |= found
            self._row_scales |= dict.fromkeys(found, stage.row_scales)
        self.names: list[str] = []
        self.recordable = True  # whether decode steps with adapters compute the same whatever their rows use
        self._scales: list[float] = []
        self._heard_scales: list[float] = []  # in prompts with recordings
        self._digests: list[str] = []

    def add(self, file: AdapterFile, pairs: Pairs) -> None:
        """Add the adapter `pairs`, read from `file`, to the model's weights.

        Raises `ModelError` if it does not fit the model.
        """
        number, name = len(self.names), file.name or _name_of(Path(file.path))
        if name in self.names:
            raise ModelError(f"{file.path}: two adapters are named {shown(name)}; rename one")
        if not is_scale(file.scale):
            raise ModelError(
                f"{file.path}: the scale {file.scale} is not between {-LARGEST_SCALE:g} and {LARGEST_SCALE:g}"
            )
        for tensor, pair in pairs.items():
            _check(file.path, tensor, pair, self._shapes(tensor))
        if self._encoder is not None:
            pairs = _kinds_in_table(pairs, self._encoder)
        digest = hashlib.sha256()
        for tensor, pair in sorted(pairs.items()):
            for place, rows in self._places[tensor]:
                low_rank = _low_rank_of(place, self._row_scales[tensor])
                # Rows that adapters change are computed apart from those they do not.
                self.recordable &= not isinstance(place, ExpertLinear)
                low_rank.add(number, tensor, pair.a, np.ascontiguousarray(pair.b[..., rows, :]))
            for part in (tensor.encode(), pair.a.tobytes(), pair.b.tobytes()):
                digest.update(part)
        self.names.append(name)
        self.rows.count = len(self.names)
        self._scales.append(file.scale)
        self._heard_scales.append(file.scale or float(is_for_recordings(Path(file.path))))
        self._digests.append(digest.hexdigest())

    def uses(self, wanted: Sequence[AdapterScale] | None, *, hears: bool = False) -> Uses:
        """Return the adapters that `wanted` asks for; None means the scales the model was loaded with.

        An adapter for recordings is then used if the prompt `hears` one. As in llama.cpp, adapters not listed
        have no effect. Raises `RequestError`.
        """
        if wanted is None:
            scales = self._heard_scales if hears else self._scales
            return tuple((i, scale) for i, scale in enumerate(scales) if scale)
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
        """Return a string that identifies these adapters and scales in any process; "" for none."""
        return " ".join(f"{self._digests[number]}*{scale!r}" for number, scale in uses)

    def _shapes(self, tensor: str) -> list[tuple[int, ...]]:
        """Return the shapes of the weights in a tensor, [out, in] or [experts, out, in]."""
        options = self._encoder.options if self._encoder is not None else None
        if tensor == KINDS and options is not None and options.token_types and options.kinds == 1:
            return [(options.token_types, options.hidden_size)]
        return [_shape(place) for place, _ in self._places.get(tensor, ())]

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
    """Read the adapter at `path`, a GGUF file or a PEFT folder, for the model in `model`.

    Raises `GGUFError`, `ModelError`, `UnsupportedModelError`.
    """
    if path.name == WEIGHTS or path.is_dir():
        folder = path if path.is_dir() else path.parent
        return read_peft_adapter(folder / CONFIG, folder / WEIGHTS, model)
    if not path.is_file():
        raise ModelError(f"adapter {path} does not exist")
    return read_gguf_adapter(path, model.architecture)


def adapter_bytes(path: Path) -> int:
    """Return the memory that the adapter at `path` takes. Raises `GGUFError`."""
    weights = path / WEIGHTS if path.is_dir() else path
    if weights.name == WEIGHTS:
        return 2 * weights.stat().st_size if weights.is_file() else 0  # missing: an error when it is read
    if not path.is_file():
        return 0
    with open_gguf(path) as file:
        return 4 * file.parameter_count


def load_adapters(files: Sequence[AdapterFile], every: Sequence[Pairs], *stages: TextModel) -> Adapters:
    """Add the adapters `every`, read from `files`, to a model of `stages`. Raises `ModelError`."""
    adapters = Adapters(*stages)
    for file, pairs in zip(files, every, strict=True):
        adapters.add(file, pairs)
    return adapters


def check_count(files: Sequence[AdapterFile]) -> None:
    """Raise `UnsupportedModelError` for more adapters than a model may have."""
    if len(files) > MAX_ADAPTERS:
        raise UnsupportedModelError(f"{len(files)} adapters; a model can have at most {MAX_ADAPTERS}")


def _name_of(path: Path) -> str:
    """Return the default name of an adapter file."""
    return path.parent.name if path.name == WEIGHTS else path.stem if path.suffix == ".gguf" else path.name


def _check(path: str, tensor: str, pair: Pair, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise `ModelError` unless `pair` fits `shapes`, the weights that share the tensor's rows."""
    if not shapes:
        raise ModelError(
            f"{path}: the adapter changes {shown(tensor)}, which the model does not have as a matrix that "
            "can be changed; use it with the model it was trained on"
        )
    *experts, _, columns = shapes[0]
    rows = sum(shape[-2] for shape in shapes)
    a, b = list(pair.a.shape), list(pair.b.shape)
    if a != [*experts, pair.rank, columns] or b != [*experts, rows, pair.rank]:
        whole = ", ".join(map(str, [*experts, ""]))
        raise ModelError(
            f"{path}: '{tensor}.lora_a' is {a} and '.lora_b' {b}; beside a weight of "
            f"{[*experts, rows, columns]} they should be [{whole}rank, {columns}] and [{whole}{rows}, rank]: "
            "use the adapter with the model it was trained on"
        )


def _low_rank_of(place: Changed, scales: RowScales) -> LowRank | ExpertLowRank | LowRankRows:
    """Return the adapters of what `place` computes, creating them if needed."""
    if place.low_rank is None:
        if isinstance(place, Linear):
            place.low_rank = LowRank(place.ops, scales)
        elif isinstance(place, ExpertLinear):
            place.low_rank = ExpertLowRank(place.ops, scales)
        else:
            place.low_rank = LowRankRows(place.ops, scales)
    return place.low_rank


def _shape(place: Changed) -> tuple[int, ...]:
    """Return the shape of the changed weight: [out, in] or [experts, out, in]."""
    if isinstance(place, ExpertLinear):
        return place.weights.shape
    return place.weight.shape if isinstance(place, Linear) else place.weight.shape[::-1]


def _kinds_in_table(pairs: Pairs, model: Encoder) -> Pairs:
    """Move changes of the first token type, which all tokens have, to the table of tokens."""
    if KINDS not in pairs:
        return pairs
    kinds, tokens = pairs[KINDS], model.token_embedding.weight.shape[0]
    # Equal rows are a product of rank 1, whatever the rank of the token types' pair.
    both = Pair(np.ones((1, tokens), np.float32), np.ascontiguousarray((kinds.b[:1] @ kinds.a).T))
    if (own := pairs.get(TABLE)) is not None:
        both = Pair(np.concatenate([own.a, both.a]), np.concatenate([own.b, both.b], axis=1))
    return {**{name: pair for name, pair in pairs.items() if name != KINDS}, TABLE: both}


def _places(model: Module) -> dict[str, Places]:
    """Return all changeable places of a model by tensor name.

    Gate and up of experts are also listed under their joint tensor, which some files have. Token tables are
    listed for encoders only: elsewhere the table may also be the output, and an adapter would have to change
    both.
    """
    found: dict[str, dict[int, tuple[Changed, Rows]]] = {}
    for linear in _of(model):
        if isinstance(linear, Linear):
            found.setdefault(linear.weight.name, {})[id(linear)] = linear, linear.rows
            continue
        name, width = linear.weights.weight.name, linear.weights.shape[1]
        found[name] = {id(linear): (linear, slice(None))}
        if joined := linear.within_joined(name.removesuffix(".weight"), width):
            found.setdefault(f"{joined[0]}.weight", {})[id(linear)] = linear, joined[1]
    found.pop(TABLE, None)
    if isinstance(model, Encoder):
        found[TABLE] = {0: (model.token_embedding, slice(None))}
    return {name: list(each.values()) for name, each in found.items() if _is_one_tensor(each.values())}


def _is_one_tensor(places: Collection[tuple[Changed, Rows]]) -> bool:
    """Whether places are one whole tensor or parts of one, rather than several values derived from it."""
    return len(places) == 1 or not any(isinstance(rows, slice) and rows == slice(None) for _, rows in places)


def _of(value: object) -> Iterator[Linear | ExpertLinear]:
    if isinstance(value, Linear | ExpertLinear):
        yield value
    elif isinstance(value, StackedLinear):
        yield from value.linears
    elif isinstance(value, list):
        for each in value:
            yield from _of(each)
    elif isinstance(value, Module):
        for each in vars(value).values():
            yield from _of(each)
