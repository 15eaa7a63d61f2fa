"""The operations that models are built from: declared in `Backend`, implemented by several backends."""

from __future__ import annotations

import logging
import os
import warnings
from functools import cache
from importlib.util import find_spec

from puna.config import env
from puna.errors import OptionError, UnavailableError
from puna.ops.array import Array, IndexBuffer, NumberBuffer
from puna.ops.backend import Backend
from puna.ops.experts import ExpertNetworks, ExpertWeights, Routing
from puna.ops.low_rank import LowRankWeights
from puna.ops.rope import Rope, Sections, Yarn
from puna.ops.storage import KV_TYPES, MemoryShape, RemovingMemoryShape, Storage
from puna.ops.weight import Weight

__all__ = [
    "KV_TYPES",
    "Array",
    "Backend",
    "ExpertNetworks",
    "ExpertWeights",
    "IndexBuffer",
    "LowRankWeights",
    "MemoryShape",
    "NumberBuffer",
    "RemovingMemoryShape",
    "Rope",
    "Routing",
    "Sections",
    "Storage",
    "Weight",
    "Yarn",
    "backend_named",
    "backends",
    "default_backend",
    "gpu_problem",
    "may_use_gpu",
    "missing_kernels",
    "processor_backend",
]

_log = logging.getLogger("puna.ops")

_NAMES = ("reference", "cpu", "gpu")

#: Devices of GPUs' drivers: NVIDIA's, AMD's, and that of Windows in its Linux.
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@cache
def backend_named(name: str) -> Backend:
    """Return the backend `reference`, `cpu` or `gpu`.

    Raises `OptionError`, `ImportError` if the kernels for the CPU were not built, and `UnavailableError` if
    there is no GPU that can be used.
    """
    if name == "reference":
        from puna.ops.reference import Reference

        return Reference()
    if name == "cpu":
        from puna.ops.cpu import CPU

        return CPU()
    if name == "gpu":
        from puna.ops.gpu import gpu_backends

        return gpu_backends()[0]
    raise OptionError(f"PUNA_OPS: '{name}' is not a backend; use one of {', '.join(_NAMES)}")


@cache
def processor_backend() -> Backend:
    """Return the backend `cpu`; without kernels, `reference` with a warning."""
    try:
        return backend_named("cpu")
    except ImportError as error:
        problem = f"{_missing(error)}, or set PUNA_OPS=reference to choose this"
        warnings.warn(problem, RuntimeWarning, stacklevel=3)
        return backend_named("reference")


@cache
def missing_kernels() -> str:
    """Return the warning for users who compute without kernels and did not choose to; empty otherwise."""
    if env("OPS"):
        return ""
    try:
        import puna._native  # noqa: F401
    except ImportError as error:
        return _missing(error)
    return ""


def _missing(error: ImportError) -> str:
    return (
        f"Puna's C++ kernels are missing ({error}), and plain numpy is many times slower; "
        "'puna doctor' says how to get them"
    )


def default_backend() -> Backend:
    """Return the backend `PUNA_OPS` names, or else `cpu`; without kernels, `reference` with a warning.

    Raises the errors of `backend_named`.
    """
    wanted = env("OPS")
    if not wanted:
        return processor_backend()
    try:
        return backend_named(wanted)
    except UnavailableError as error:
        raise UnavailableError(f"PUNA_OPS={wanted}: {error}") from None


def backends(*, gpu: bool = True) -> list[Backend]:
    """Return the backends a model may be loaded with, the best first.

    These are those of the GPUs that can be used, if `gpu`, and the default; or if `PUNA_OPS` names one, that
    is the only one, and `gpu` stands for all GPUs. Raises `OptionError` for a wrong `PUNA_OPS` or
    `PUNA_GPU_DEVICE`.
    """
    default = default_backend()
    if default.name == "gpu":
        return _gpus_or_reason()[0]
    return [*_gpus_or_reason()[0], default] if gpu and may_use_gpu() else [default]


def may_use_gpu() -> bool:
    """Whether a GPU's driver, torch and Triton are installed, and no setting is against using them.

    Nothing is imported for the answer.
    """
    if env("GPU_DEVICE") == "cpu" and not env("OPS"):  # torch on the processor stands in for a GPU
        return find_spec("torch") is not None
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")  # which AMD's driver reads too
    if hidden or env("OPS") or not any(map(os.path.exists, _DRIVERS)):
        return False
    return all(map(find_spec, ("torch", "triton")))


def gpu_problem() -> str:
    """Return why a GPU that has a driver cannot be used; empty if it can, or there is none."""
    return _gpus_or_reason()[1] if may_use_gpu() else ""


@cache
def _gpus_or_reason() -> tuple[list[Backend], str]:
    """Return the backends of GPUs, or why there are none."""
    from puna.ops.gpu import gpu_backends

    try:
        return gpu_backends(), ""
    except UnavailableError as error:
        _log.info("no GPU is used: %s", error)
        return [], str(error)
