"""The operations as Triton kernels."""

from __future__ import annotations

from puna.ops.gpu.graphs import GraphRecorder
from puna.ops.gpu.torch_backend import TorchBackend


class TritonBackend(TorchBackend):
    """The operations on a GPU, or on the CPU in Triton's interpreter."""

    @property
    def kernels(self) -> str:
        return f"triton on {self.place}"

    def recorder(self) -> GraphRecorder | None:
        return GraphRecorder() if self.place.type == "cuda" else None
