"""The operations on a GPU: torch for memory and plain operations, Triton for the kernels.

This folder alone imports torch, which the extra `gpu` installs.
"""

from __future__ import annotations

from typing import Any

from puna.config import env
from puna.errors import OptionError, UnavailableError
from puna.ops.backend import Backend


def gpu_backend() -> Backend:
    """Return the backend of the device that `PUNA_GPU_DEVICE` names, by default the first GPU.

    `cpu` is torch's CPU device, in plain torch, for tests. Raises `UnavailableError` if there is no
    such device or a library is missing, and `OptionError` for another name.
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
    if device.type == "cpu":
        return TorchBackend(device)
    if device.type != "cuda":
        raise OptionError(f"PUNA_GPU_DEVICE: there are kernels for cuda devices and cpu, not for '{name}'")
    if device.index:  # Triton launches on the thread's current device, which is the first one in every thread
        raise OptionError(
            f"PUNA_GPU_DEVICE: models use the first GPU, and CUDA_VISIBLE_DEVICES={device.index} chooses it"
        )
    if reason := why_not():
        raise UnavailableError(reason)
    from puna.ops.gpu.triton_backend import TritonBackend

    return TritonBackend(device)


def why_not(index: int = 0) -> str:
    """Return why the GPU `index` cannot be used; empty if it can."""
    if problem := _missing():
        return problem
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without GPU support"
    if torch.version.hip is not None:
        return "caches need CUDA's virtual memory, and have no form for AMD's GPUs yet"
    if not torch.cuda.is_available():
        return "torch finds no GPU, or its driver is missing or too old"
    if index >= torch.cuda.device_count():
        return f"there is no GPU {index}: torch finds {torch.cuda.device_count()}"
    major, minor = torch.cuda.get_device_capability(index)
    if major < 8:
        name = torch.cuda.get_device_name(index)
        return f"{name} has compute capability {major}.{minor}, and the kernels need 8.0 or later"
    return ""


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

    Each has a name, its memory in bytes, its compute capability and the problem that keeps models from it.
    Without a GPU there is a problem in general.
    """
    if problem := _missing():
        return {"torch": None, "runtime": None, "problem": problem, "gpus": []}
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
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
                "capability": f"{found.major}.{found.minor}",
                "problem": why_not(index) or ("models use the first GPU" if index else None),
            }
        )
    return {"torch": torch.__version__, "runtime": runtime, "problem": why_not() or None, "gpus": gpus}
