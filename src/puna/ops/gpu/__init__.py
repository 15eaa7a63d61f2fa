"""The operations on a GPU: torch for memory and plain operations, Triton for the kernels.

This folder alone imports torch, which the extra `gpu` installs.
"""

from __future__ import annotations

from puna.config import env
from puna.errors import OptionError, UnavailableError
from puna.ops.backend import Backend


def gpu_backend() -> Backend:
    """Return the backend of the device that `PUNA_GPU_DEVICE` names, by default the first GPU.

    `cpu` is torch's CPU device, in plain torch, for tests. Raises `UnavailableError` if there is no
    such device or a library is missing, and `OptionError` for a name that torch does not know.
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
        raise OptionError(f"PUNA_GPU_DEVICE: '{name}' is no device; use cuda, cuda:1, ... or cpu") from None
    if device.type == "cpu":
        return TorchBackend(device)
    if device.type != "cuda":
        raise OptionError(f"PUNA_GPU_DEVICE: there are kernels for cuda devices and cpu, not for '{name}'")
    if reason := why_not(device.index or 0):
        raise UnavailableError(f"PUNA_OPS=gpu: {reason}")
    from puna.ops.gpu.triton_backend import TritonBackend

    return TritonBackend(device)


def why_not(index: int = 0) -> str:
    """Return why the GPU `index` cannot be used; empty if it can."""
    try:
        import torch
    except ImportError as error:
        return f"torch is missing ({error}); pip install 'puna[gpu]'"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without GPU support"
    if not torch.cuda.is_available():
        return "torch finds no GPU, or its driver is missing or too old"
    if index >= torch.cuda.device_count():
        return f"there is no GPU {index}: torch finds {torch.cuda.device_count()}"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton is missing ({error}); pip install 'puna[gpu]'"
    major, minor = torch.cuda.get_device_capability(index)
    if torch.version.hip is None and major < 8:
        name = torch.cuda.get_device_name(index)
        return f"{name} has compute capability {major}.{minor}, and the kernels need 8.0 or later"
    return ""
