"""Rotary position embedding: the angles by which a model rotates its queries and keys."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Yarn:
    """Settings of YaRN context extension (Peng et al., arXiv:2309.00071).

    Pairs that rotate more than `beta_fast` times over the original context keep their frequency, those that
    rotate less than `beta_slow` times are slowed down by `factor`, and the ones between are blended.
    `extrapolation` 0 switches the blend off. The blend begins and ends at whole pairs if `truncate`.
    """

    factor: float
    original_context: int = 131072
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0
    truncate: bool = True

    def bounds(self, dims: int, base: float) -> tuple[float, float]:
        """Return the first and last pair of the blend."""

        def pair(turns: float) -> float:
            return dims * math.log(self.original_context / (2 * math.pi * turns)) / (2 * math.log(base))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(0, low), min(dims - 1, high)

    def slowdown(self, dims: int, base: float) -> NDArray[np.float64]:
        """Return the factor of each pair's frequency: float64 [dims/2], between 1/factor and 1."""
        low, high = self.bounds(dims, base)
        pairs = np.arange(dims // 2, dtype=np.float64)
        kept = (1 - ((pairs - low) / max(0.001, high - low)).clip(0, 1)) * self.extrapolation
        return (1 - kept) / self.factor + kept

    @property
    def magnitude(self) -> float:
        """Return the factor of cosines and sines that compensates for flatter attention."""
        if not self.extrapolation:
            return self.attention_factor
        return self.attention_factor * (1 + 0.1 * math.log(self.factor))


@dataclass(frozen=True)
class Sections:
    """The number of pairs that each axis of a position rotates (M-RoPE: Wang et al., arXiv:2409.12191).

    The axes follow one another or, when `interleaved` (Qwen3-VL), the first three take turns for as long as
    the second and third have pairs left.
    """

    pairs: tuple[int, ...]
    interleaved: bool = False

    def axes(self, pairs: int) -> NDArray[np.int32]:
        """Return the axis that rotates each of a head's `pairs`: int32 [pairs]. Beyond the sections, repeat.

        Raises ValueError for sections that are empty, negative or too few to interleave.
        """
        counts, total = self.pairs, sum(self.pairs)
        if min(counts, default=0) < 0 or not total or (self.interleaved and len(counts) < 3):
            wanted = "at least three" if self.interleaved else "one or more"
            raise ValueError(
                f"rope sections are the pairs of each axis, {wanted} of them, not {list(counts)}"
            )
        place = np.arange(pairs) % total
        if self.interleaved:
            axis = place % 3
            ends = np.array([0, 3 * counts[1] + 1, 3 * counts[2] + 2])
            return np.where(place < ends[axis], axis, 0).astype(np.int32)
        return np.arange(len(counts)).repeat(counts)[place].astype(np.int32)


@dataclass(frozen=True, eq=False)
class Rope:
    """A rotation of pair j of a head's `2 * pairs` values from `begin` on by `position * frequencies[j]`.

    A pair is (2j, 2j+1), or (j, j + pairs) if `neox`, counted from there. The rest of the head passes
    unchanged. The rotated values are multiplied by `magnitude`.

    With `axes`, a token has a position on each of `axis_count` axes (time, height and width, say), and pair j
    rotates by the position on `axes[j]`. A token with one position has it on all axes.
    """

    frequencies: NDArray[np.float32]  # [pairs], radians per position
    magnitude: float = 1.0
    neox: bool = False
    axes: NDArray[np.int32] | None = None  # [pairs]
    begin: int = 0
    axis_count: int = dataclasses.field(init=False, default=1)

    def __post_init__(self) -> None:
        kept = self.frequencies
        if kept.dtype != np.float32 or kept.ndim != 1 or not kept.flags.c_contiguous:
            raise ValueError(
                f"rope frequencies must be contiguous float32 [pairs], not {kept.dtype} {list(kept.shape)}"
            )
        if self.axes is not None:
            axes = self.axes
            if axes.dtype != np.int32 or axes.shape != kept.shape or not axes.flags.c_contiguous:
                raise ValueError(
                    f"rope axes must be contiguous int32 [{len(kept)}], one for each pair, "
                    f"not {axes.dtype} {list(axes.shape)}"
                )
            if int(axes.min()) < 0:
                raise ValueError(f"rope axes are numbered from 0, got {int(axes.min())}")
            object.__setattr__(self, "axis_count", int(axes.max()) + 1)

    @classmethod
    def build(
        cls,
        dims: int,
        base: float = 10000.0,
        *,
        neox: bool = False,
        factors: NDArray[Any] | None = None,
        linear_factor: float = 1.0,
        yarn: Yarn | None = None,
        magnitude: float = 1.0,
        sections: Sections | None = None,
    ) -> Rope:
        """Return a rotation with frequencies `base ** (-2j / dims) / factors[j]` for `dims` values, scaled.

        factors: [dims/2], a model's own table (`rope_freqs.weight`).
        linear_factor: positions are divided by it (linear context extension).
        yarn: extends the context instead; its magnitude multiplies `magnitude`.
        sections: the pairs of each axis, if positions have several.
        """
        if dims <= 0 or dims % 2:
            raise ValueError(
                f"rope rotates pairs: the number of rotated values must be even and positive, not {dims}"
            )
        if factors is not None and factors.size != dims // 2:
            raise ValueError(f"rope factors: {factors.size} values for {dims // 2} pairs")
        frequencies = base ** (-2 * np.arange(dims // 2, dtype=np.float64) / dims)
        if factors is not None:
            frequencies = frequencies / factors.reshape(-1).astype(np.float64)
        frequencies = frequencies / linear_factor
        if yarn is not None:
            frequencies = frequencies * yarn.slowdown(dims, base)
            magnitude *= yarn.magnitude
        axes = None if sections is None else sections.axes(dims // 2)
        return cls(frequencies.astype(np.float32), magnitude, neox, axes)

    @property
    def pairs(self) -> int:
        return self.frequencies.size

    def at_end(self, head_dim: int) -> Rope:
        """Return the rotation of the last values of heads of `head_dim`."""
        return dataclasses.replace(self, begin=head_dim - 2 * self.pairs)

    def backwards(self) -> Rope:
        """Return the rotation that undoes this one, except for its magnitude."""
        return dataclasses.replace(self, frequencies=-self.frequencies)

    def without_magnitude(self) -> Rope:
        """Return the rotation for rotated keys, which have the magnitude already (context shift)."""
        return dataclasses.replace(self, magnitude=1.0)
