"""The operations on a GPU: torch for memory and plain operations, Triton for the kernels.

This folder alone imports torch, which the extra `gpu` installs.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from puna.config import env, setting
from puna.errors import OptionError, UnavailableError
from puna.ops.backend import Backend
from puna.options import MAX_GPUS

_log = logging.getLogger("puna.ops")

_GB = 10**9

#: Architectures of AMD's GPUs that the kernels are compiled for: MI300, and Radeon RX 7000.
_AMD = ("gfx942", "gfx11")


@cache
def gpu_backends() -> list[Backend]:
    """Return the backends of all GPUs that can be used, at least one, in torch's order.

    If `PUNA_GPU_DEVICE` is `cpu`, they are torch's CPU device, in plain torch, for tests: as many as
    `PUNA_GPU_MEMORY_GB` has numbers, or one. Raises `UnavailableError` if there is no device or a library is
    missing, and `OptionError` for another name.
    """
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"computing on a GPU needs torch ({error}): pip install 'puna[gpu]'") from None
    from puna.ops.gpu.torch_backend import TorchBackend

    name = env("GPU_DEVICE") or "cuda"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"PUNA_GPU_DEVICE: '{name}' is no device; use cuda or cpu") from None
    limits: list[int] = setting("GPU_MEMORY_GB", _sizes, [])
    if device.type == "cpu":
        if env("OPS"):  # chosen as the only backend, of which the processor's memory is
            return [TorchBackend(device)]
        return [TorchBackend(device, f"GPU {i}", limit) for i, limit in enumerate(limits or [None])]
    if device.type != "cuda":
        raise OptionError(f"PUNA_GPU_DEVICE: there are kernels for cuda devices and cpu, not for '{name}'")
    if device.index:
        raise OptionError(
            f"PUNA_GPU_DEVICE: models use all GPUs; CUDA_VISIBLE_DEVICES={device.index} is for this one alone"
        )
    reasons = [why_not(0), *(why_not(index) for index in range(1, _count()))]
    if all(reasons):
        raise UnavailableError(reasons[0])
    from puna.ops.gpu.triton_backend import TritonBackend

    found: list[Backend] = []
    for index, reason in enumerate(reasons):
        if reason:
            _log.info("GPU %d is not used: %s", index, reason)
            continue
        limit = limits[min(index, len(limits) - 1)] if limits else None
        found.append(TritonBackend(torch.device("cuda", index), limit=limit))
    return found


def _sizes(text: str) -> list[int]:
    """Return the bytes of `text`, numbers of gigabytes for one GPU after the other; the last is for all."""
    parts = text.split(",")
    try:
        sizes = [float(part) for part in parts]
    except ValueError:
        raise ValueError("must be numbers of gigabytes, as in 6 or 6,12") from None
    if len(parts) > MAX_GPUS or not all(0 < size < 1e6 for size in sizes):
        raise ValueError(f"must be up to {MAX_GPUS} numbers of gigabytes above 0")
    return [round(size * _GB) for size in sizes]


def _count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_not(index: int = 0) -> str:
    """Return why the GPU `index` cannot be used; empty if it can."""
    if problem := _missing():
        return problem
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without GPU support"
    if not torch.cuda.is_available():
        return "torch finds no GPU, or its driver is missing or too old"
    if index >= torch.cuda.device_count():
        return f"there is no GPU {index}: torch finds {torch.cuda.device_count()}"
    name = torch.cuda.get_device_name(index)
    if torch.version.hip is not None:
        architecture = _architecture(index)
        if not architecture.startswith(_AMD):
            return f"{name} is {architecture}, and the kernels are for {', '.join(_AMD)}"
        return ""
    major, minor = torch.cuda.get_device_capability(index)
    if major < 8:
        return f"{name} has compute capability {major}.{minor}, and the kernels need 8.0 or later"
    return ""


def _architecture(index: int) -> str:
    """Return the architecture of an AMD GPU, such as gfx942."""
    import torch

    # With its features, as in gfx942:sramecc+:xnack-.
    named: str = torch.cuda.get_device_properties(index).gcnArchName
    return named.partition(":")[0]


def _missing() -> str:
    """Return which library is missing; empty if none is."""
    try:
        import torch  # noqa: F401
        import triton  # noqa: F401
    except ImportError as error:
        return f"a library is missing ({error}): pip install 'puna[gpu]'"
    return ""


def describe_gpus() -> dict[str, Any]:
    """Return what torch finds, for `puna doctor`: the versions of torch and its CUDA or ROCm, and the GPUs.

    Each has a name, its memory in bytes, its architecture and the problem that keeps models from it.
    Without a GPU there is a problem in general.
    """
    if problem := _missing():
        return {"torch": None, "runtime": None, "problem": problem, "gpus": []}
    import torch

    count = _count()
    runtime = f"CUDA {torch.version.cuda}" if torch.version.cuda else None
    if torch.version.hip is not None:
        runtime = f"ROCm {torch.version.hip}"
    gpus = []
    for index in range(count):
        found = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": found.name,
                "memory": found.total_memory,
                "architecture": _architecture(index)
                if torch.version.hip is not None
                else f"compute capability {found.major}.{found.minor}",
                "problem": why_not(index) or None,
            }
        )
    return {"torch": torch.__version__, "runtime": runtime, "problem": why_not() or None, "gpus": gpus}
