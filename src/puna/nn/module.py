"""Modules that say where their weights are.

    class Attention(Module):
        query: Linear = weight("attn_q", "query_size", "hidden_size")

declares that `query` is a Linear made from the tensor `<prefix>.attn_q.weight` (and `.bias`, if the
file has one) of shape [options.query_size, options.hidden_size]. A field of type `Array` is the bare
vector, whose name may lack the `.weight`. `Module.load` fills such fields, of the module and of the modules
inside it, and reports a missing or misshapen tensor by its name.

Where tensors have other names, a subclass declares the field again; where that depends on the layer, the
`choose` of `part` or `blocks` picks the subclass by the layer's options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, get_type_hints

from puna.errors import ModelError
from puna.ops import Array, Backend, ExpertWeights, Weight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class WeightSource(Protocol):
    """Where modules get their tensors from, by their full names in the file, and what they compute with."""

    @property
    def ops(self) -> Backend: ...

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        """The matrix `name`, or None if the file has none. Raises `ModelError` if its shape differs.

        The shape is [out, in], and perhaps ones after that.
        """

    def experts(self, name: str, shape: tuple[int, ...]) -> ExpertWeights | None:
        """The matrices `name` [experts, out, in], or None. Raises `ModelError` if their shape differs."""

    def vector(self, name: str, length: int) -> Array | None:
        """The vector `name` as float32, or None. Raises `ModelError` if its length differs."""

    def values(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """The values of `name` on the host, or None. Raises `ModelError` if their shape differs."""


@dataclass(frozen=True)
class _WeightField:
    name: str
    shape: tuple[str | int, ...]
    optional: bool
    tied_to: str | None


@dataclass(frozen=True)
class _PartField:
    prefix: str
    choose: Callable[[Any], type[Module] | None] | None
    options: str


@dataclass(frozen=True)
class _BlocksField:
    prefix: str
    options: str
    choose: Callable[[Any], type[Module]] | None
    begin: str


def weight(name: str, *shape: str | int, optional: bool = False, tied_to: str | None = None) -> Any:
    """A leaf made from tensor `name`; `shape` is made of numbers and names of options, row-major.

    Where files differ in a tensor's name, `name` is several with a `|` between them, the first of which that
    the file has is taken. `tied_to` is the tensor that serves when it has none of them.
    """
    return _WeightField(name, shape, optional, tied_to)


def part(
    prefix: str = "", *, choose: Callable[[Any], type[Module] | None] | None = None, options: str = ""
) -> Any:
    """A module inside this one; its tensors are named like this module's, after `prefix`.

    Where layers differ, `choose(options of the layer)` says which module it is; None: there is none.
    `options` names the field of this module's options that is the other one's; without, they are the same.
    """
    return _PartField(prefix, choose, options)


def blocks(
    prefix: str,
    *,
    options: str = "layers",
    choose: Callable[[Any], type[Module]] | None = None,
    begin: str = "",
) -> Any:
    """A list of modules with tensors `<prefix>.0.*`, `<prefix>.1.*`, ...

    `options` names the field of the model's options that lists theirs, and `begin` the one with the number
    of the first, if that is not 0. Where they are not all of one kind, `choose(their options)` says which.
    """
    return _BlocksField(prefix, options, choose, begin)


class Module:
    """Base of everything a model is made of.

    `options` are those of the model, or of its layer; `ops` does the arithmetic.
    """

    def __init__(self, options: Any, ops: Backend, index: int = 0) -> None:
        self.options = options
        self.ops = ops
        self.index = index  # among its equals in a `blocks` list

    @classmethod
    def load(cls, source: WeightSource, options: Any, prefix: str = "", index: int = 0) -> Self:
        """Build the module with all its weights. Raises `ModelError` naming what is missing."""
        module = cls(options, source.ops, index)
        for attribute, kind in get_type_hints(cls).items():
            declared = getattr(cls, attribute, None)
            if isinstance(declared, _WeightField):
                setattr(module, attribute, _load_leaf(kind, source, declared, prefix, options))
            elif isinstance(declared, _PartField):
                inner = _join(prefix, declared.prefix)
                chosen = declared.choose(options) if declared.choose else kind
                own = getattr(options, declared.options) if declared.options else options
                setattr(module, attribute, chosen and chosen.load(source, own, inner, index))
            elif isinstance(declared, _BlocksField):
                (block,) = kind.__args__
                inner, built = _join(prefix, declared.prefix), []
                begin = getattr(options, declared.begin) if declared.begin else 0
                for i, own in enumerate(getattr(options, declared.options), begin):
                    chosen = declared.choose(own) if declared.choose else block
                    built.append(chosen.load(source, own, f"{inner}.{i}", i))
                setattr(module, attribute, built)
        module.loaded()
        return module

    def loaded(self) -> None:
        """Called once all weights are in place, to derive what forward needs."""


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _load_leaf(kind: Any, source: WeightSource, field: _WeightField, prefix: str, options: Any) -> Any:
    leaf_type = _leaf_type(kind)
    shape = tuple(size if isinstance(size, int) else int(getattr(options, size)) for size in field.shape)
    names = [_join(prefix, name) for name in field.name.split("|")]
    for name in [*names, field.tied_to] if field.tied_to else names:
        if leaf_type is Array:
            leaf = source.vector(f"{name}.weight", shape[0])
            if leaf is None:
                leaf = source.vector(name, shape[0])
        else:
            leaf = leaf_type.from_source(source, name, shape, options)
        if leaf is not None:
            return leaf
    if field.optional:
        return None
    raise ModelError(f"tensor '{names[0]}.weight' is missing")


def _leaf_type(kind: Any) -> Any:
    """`X` of a field annotated `X` or `X | None`."""
    arguments = [argument for argument in getattr(kind, "__args__", ()) if argument is not type(None)]
    return arguments[0] if arguments else kind
