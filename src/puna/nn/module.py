"""Modules that declare the tensors their weights come from.

    class Attention(Module):
        query: Linear = weight("attn_q", "query_size", "hidden_size")

declares that `query` is a Linear made from the tensor `<prefix>.attn_q.weight` (and `.bias`, if the file has
one) of shape [options.query_size, options.hidden_size]. A field of type `Array` is the bare vector, whose
name may lack `.weight`. `Module.load` fills the fields of a module and its parts, and names any missing or
misshapen tensor.

A subclass redeclares fields whose tensors have other names; where that depends on the layer, the `choose` of
`part` or `blocks` picks the subclass by the layer's options.
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
    """Source of tensors by their full names in the file, and the backend that computes with them."""

    @property
    def ops(self) -> Backend: ...

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        """Return the matrix `name`, or None if the file has none. Raises `ModelError` if its shape differs.

        The shape is [out, in], possibly followed by ones.
        """

    def experts(self, name: str, shape: tuple[int, ...]) -> ExpertWeights | None:
        """Return matrices `name` [experts, out, in], or None. Raises `ModelError` if their shape differs."""

    def vector(self, name: str, length: int) -> Array | None:
        """Return the vector `name` as float32, or None. Raises `ModelError` if its length differs."""

    def values(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """Return the values of `name` on the host, or None. Raises `ModelError` if their shape differs."""

    def holds(self, name: str) -> bool:
        """Whether this process holds the tensor `name`, or the module whose tensors begin with it."""


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
    """Declare a leaf made from tensor `name`; `shape` holds numbers and names of options, row-major.

    `name` may list alternatives separated by `|`; the first that the file has is used. `tied_to` is the
    tensor used if the file has none of them.
    """
    return _WeightField(name, shape, optional, tied_to)


def part(
    prefix: str = "", *, choose: Callable[[Any], type[Module] | None] | None = None, options: str = ""
) -> Any:
    """Declare a module inside this one, whose tensors are named like this module's plus `prefix`.

    `choose(options)` picks its class, or None for no module. `options` names the field of this module's
    options that holds the inner module's; by default they share theirs.
    """
    return _PartField(prefix, choose, options)


def blocks(
    prefix: str,
    *,
    options: str = "layers",
    choose: Callable[[Any], type[Module]] | None = None,
    begin: str = "",
) -> Any:
    """Declare a list of modules with tensors `<prefix>.0.*`, `<prefix>.1.*`, ...

    `options` names the field that lists the modules' options, and `begin` the field with the number of the
    first module (default 0). `choose(options)` picks each module's class.
    """
    return _BlocksField(prefix, options, choose, begin)


class Module:
    """Base class of models and their parts.

    `options` belong to the model or the layer; `ops` does the arithmetic.
    """

    def __init__(self, options: Any, ops: Backend, index: int = 0) -> None:
        self.options = options
        self.ops = ops
        self.index = index  # position in a `blocks` list

    @classmethod
    def load(cls, source: WeightSource, options: Any, prefix: str = "", index: int = 0) -> Self:
        """Build the module with all its weights. Raises `ModelError` that names a missing tensor.

        Modules of lists that another process holds are left out, and its tensors are None.
        """
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
                    if not source.holds(f"{inner}.{i}"):
                        continue
                    chosen = declared.choose(own) if declared.choose else block
                    built.append(chosen.load(source, own, f"{inner}.{i}", i))
                setattr(module, attribute, built)
        module.loaded()
        return module

    def loaded(self) -> None:
        """Derive what `forward` needs once all weights are loaded."""


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _load_leaf(kind: Any, source: WeightSource, field: _WeightField, prefix: str, options: Any) -> Any:
    leaf_type = _leaf_type(kind)
    shape = tuple(size if isinstance(size, int) else int(getattr(options, size)) for size in field.shape)
    names = [_join(prefix, name) for name in field.name.split("|")]
    if not source.holds(names[0]):
        return None
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
    """Return `X` for a field annotated `X` or `X | None`."""
    arguments = [argument for argument in getattr(kind, "__args__", ()) if argument is not type(None)]
    return arguments[0] if arguments else kind
