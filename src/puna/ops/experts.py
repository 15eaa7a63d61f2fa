"""Mixtures of experts: a layer's weights, and how a router's scores become weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from puna.ops.array import Array
from puna.ops.weight import Weight

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Activations of the gate and up products, in the order of the kernels' numbers...
GATED_ACTIVATIONS = ("swiglu", "clamped_swiglu", "geglu", "reglu")
#: ... followed by those of the up product alone.
ACTIVATIONS = (*GATED_ACTIVATIONS, "gelu", "squared_relu")


@dataclass(frozen=True)
class Routing:
    """Settings for choosing a token's experts (see `Backend.route`)."""

    used: int  # experts per token
    sigmoid: bool = False  # scores are sigmoids of the logits, else their softmax over all experts
    normalize: bool = True  # weights are divided by their sum
    scale: float = 1.0  # ... and multiplied by this
    groups: int = 1  # of equal size; consecutive experts form a group
    used_groups: int = 1  # groups that a token's experts come from
    best_of_group: int = 2  # a group is ranked by the sum of this many best scores
    sqrt_softplus: bool = False  # scores are sqrt(ln(1 + e^logit)), if not sigmoids

    @property
    def scoring(self) -> int:
        """The kernels' number for what scores are: 0 for the softmax, 1 for sigmoids, 2 for roots."""
        return 1 if self.sigmoid else 2 * self.sqrt_softplus


class ExpertWeights:
    """One matrix [out, in] per expert, stored as one matrix with the experts' rows below each other."""

    def __init__(self, weight: Weight, count: int) -> None:
        rows, columns = weight.shape
        if count < 1 or rows % count:
            raise ValueError(f"weight '{weight.name}': {rows} rows are not those of {count} experts")
        self.weight = weight
        self.shape = (count, rows // count, columns)

    @property
    def on_host(self) -> bool:
        """Whether they stay on the host (see `Weight`)."""
        return self.weight.on_host

    @classmethod
    def stack(cls, name: str, parts: Sequence[Weight]) -> ExpertWeights:
        """Stack one matrix per expert; their bytes are copied and released."""
        first = parts[0]
        for part in parts:
            if (part.type, part.shape) != (first.type, first.shape):
                raise ValueError(
                    f"weight '{part.name}' is {part.type.name} {list(part.shape)}, but "
                    f"'{first.name}' is {first.type.name} {list(first.shape)}: all experts must have the "
                    "same type and shape"
                )
        rows, columns = first.shape
        data = np.concatenate([part.data for part in parts if part.data is not None])
        shape = (len(parts) * rows, columns)
        weight = Weight(name, data, first.type, shape, on_host=first.on_host)
        for part in parts:
            part.drop_data()
        return cls(weight, len(parts))

    def rows(self, name: str, rows: slice) -> ExpertWeights:
        """Return some rows of every expert as a copy: for files that store two matrices as one."""
        count, every, columns = self.shape
        assert self.weight.data is not None
        chosen = self.weight.data.reshape(count, every, -1)[:, rows]
        shape, on_host = (count * chosen.shape[1], columns), self.on_host
        return ExpertWeights(Weight(name, chosen, self.weight.type, shape, on_host=on_host), count)

    def matrices(self) -> list[Weight]:
        """Return each expert's matrix, as a weight that shares the bytes."""
        count, rows, _ = self.shape
        return [self.weight.row_range(i * rows, (i + 1) * rows) for i in range(count)]

    def values(self, expert: int) -> NDArray[np.float32]:
        """Return the values of one expert's matrix [out, in]."""
        rows = self.shape[1]
        return self.weight.rows(np.arange(expert * rows, (expert + 1) * rows))


@dataclass(frozen=True)
class ExpertNetworks:
    """The feed-forward networks of a layer (see `Backend.experts`).

    Biases are arrays of the backend that computes with the weights: `Backend.host` if these stay on the host.
    Raises `ValueError` for shapes that do not fit, and if only some of the weights stay on the host.
    """

    gate: ExpertWeights | None  # [experts, width, in]; None: experts have no gates
    up: ExpertWeights  # [experts, width, in]
    down: ExpertWeights  # [experts, out, width]
    gate_bias: Array | None = None  # [experts, width]
    up_bias: Array | None = None  # [experts, width]
    down_bias: Array | None = None  # [experts, out]
    activation: str = "swiglu"
    scale_inputs: bool = False  # weights multiply an expert's input, not its output (Llama 4)
    gate_limit: float = 0.0  # of gates from above, before the activation; 0: none
    up_limit: float = 0.0  # of ups on both sides; 0: none, as for gates

    def __post_init__(self) -> None:
        count, width, _ = self.up.shape
        parts = [part for part in (self.gate, self.up, self.down) if part is not None]
        if parts[0].shape != self.up.shape or self.down.shape[::2] != (count, width):
            shapes = ", ".join(f"'{part.weight.name}' {list(part.shape)}" for part in parts)
            raise ValueError(f"experts: weights do not fit together: {shapes}")
        if len({part.on_host for part in parts}) > 1:
            names = ", ".join(f"'{part.weight.name}'" for part in parts if part.on_host)
            raise ValueError(f"experts: {names} alone cannot stay on the host, without the layer's others")
        for name, bias, part in (
            ("gate", self.gate_bias, self.gate),
            ("up", self.up_bias, self.up),
            ("down", self.down_bias, self.down),
        ):
            if bias is not None and (part is None or bias.shape != part.shape[:2]):
                fit = "belongs to no weight" if part is None else f"does not fit {list(part.shape)}"
                raise ValueError(f"experts: {name} bias {list(bias.shape)} {fit}")
        known = ACTIVATIONS[len(GATED_ACTIVATIONS) :] if self.gate is None else GATED_ACTIVATIONS
        if self.activation not in known:
            gates = "without gates" if self.gate is None else "with gates"
            raise ValueError(f"experts {gates}: activation {self.activation!r} is none of {', '.join(known)}")
        limits = (self.gate_limit, self.up_limit)
        if limits != (0, 0) and (min(limits) <= 0 or self.gate is None):
            raise ValueError(f"experts: limits must be positive, and need gates, but are {limits}")
