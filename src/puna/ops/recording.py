"""Recording of a computation, to repeat it with one call, like a CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from puna.ops.array import Array, IndexBuffer, NumberBuffer


class Program(Protocol):
    """A recorded computation. `result`, always the same array, holds the outcome.

    The result is lost when another program of the same recorder is recorded or runs.
    """

    @property
    def result(self) -> Array: ...

    def run(self) -> None:
        """Compute again with the current contents of the inputs. Raises the errors of the operations."""

    def run_timed(self) -> dict[str, float]:
        """Do the same as `run`, and return the seconds spent in each kind of kernel."""

    def spoil(self) -> None:
        """Overwrite every value the program computes with nonsense (NaN, indices of -1)."""

    @property
    def kernels(self) -> Sequence[str]:
        """The names of the kernels, in the order in which they run."""


@dataclass(frozen=True)
class Recorded:
    """The outcome of recording: the result, and a program or the reason why there is none."""

    result: Array
    program: Program | None
    obstacle: str = ""


class Recorder(Protocol):
    """A recorder of computations that never run at the same time, so that they can share memory."""

    def record(self, compute: Callable[..., Array], inputs: Sequence[IndexBuffer | NumberBuffer]) -> Recorded:
        """Run `compute(*arrays of the inputs)` and record it.

        A running program reads anew the contents of buffers, of storage and of `inputs`. Everything
        else it read is kept alive and unchanged, except a model's weights: the model must outlive the
        program. Errors of `compute` propagate.
        """
