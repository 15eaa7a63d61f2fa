"""Recording what a computation does once, to do it again with one call: what CUDA graphs are on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from puna.ops.array import Array, IndexBuffer


class Program(Protocol):
    """A recorded computation. `result`, always the same array, has what comes out.

    The result is lost when another program of the same recorder is recorded or runs.
    """

    @property
    def result(self) -> Array: ...

    def run(self) -> None:
        """Compute again, from what its inputs hold now. Raises what the operations raise."""

    def run_timed(self) -> dict[str, float]:
        """As `run`; returns the seconds spent in each kind of kernel."""

    def spoil(self) -> None:
        """Make nonsense (NaN, indices of -1) of every value the program is to compute."""

    @property
    def kernels(self) -> Sequence[str]:
        """Names of the kernels, in the order in which they run."""


@dataclass(frozen=True)
class Recorded:
    """What came of recording: the result, and a program or the reason why there is none."""

    result: Array
    program: Program | None
    obstacle: str = ""


class Recorder(Protocol):
    """Records computations of which only one is done at a time, so that they can share memory."""

    def record(self, compute: Callable[..., Array], inputs: Sequence[IndexBuffer]) -> Recorded:
        """`compute(*arrays of the inputs)`, noting what it does.

        When the program runs, what it reads anew is what lies in index buffers, in storage and in `inputs`.
        Whatever else it read is kept alive and taken as it was, a model's weights excepted: the model must
        outlive the program. Errors of `compute` are passed on.
        """
