"""The GPUs that models use, with stand-ins for what torch finds."""

from __future__ import annotations

import ctypes
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from puna.errors import UnavailableError
from puna.ops import gpu
from puna.ops.gpu import planes, virtual_memory
from puna.ops.gpu.kernels.attention import family_of
from puna.ops.gpu.kernels.tiles import TILES, _tiles_of
from puna.ops.gpu.planes import MovingPlane

GPU = torch.device("cuda", 0)


def found(monkeypatch: pytest.MonkeyPatch, *gpus: SimpleNamespace, hip: str | None) -> None:
    """Let torch find GPUs with these properties: those of NVIDIA, or with a version of HIP those of AMD."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", None if hip else "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: gpus[index].name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpus[index])
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda index: (gpus[index].major, gpus[index].minor)
    )
    monkeypatch.delenv("PUNA_OPS", raising=False)
    monkeypatch.delenv("PUNA_GPU_DEVICE", raising=False)
    monkeypatch.setattr(gpu, "gpu_backends", cache(gpu.gpu_backends.__wrapped__))
    for remembered in (virtual_memory.is_available, family_of, _tiles_of):
        remembered.cache_clear()


def amd(architecture: str, name: str = "AMD Instinct MI300X") -> SimpleNamespace:
    """Return the properties that torch's builds for ROCm give."""
    return SimpleNamespace(name=name, total_memory=192 << 30, major=9, minor=4, gcnArchName=architecture)


def test_amds_gpus_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, amd("gfx942:sramecc+:xnack-"), amd("gfx1100", "AMD Radeon RX 7900 XTX"), hip="6.4.4")
    described = gpu.describe_gpus()
    assert described["runtime"] == "ROCm 6.4.4"
    assert described["problem"] is None
    assert [(each["architecture"], each["problem"]) for each in described["gpus"]] == [
        ("gfx942", None),
        ("gfx1100", None),
    ]
    assert [(each.device, each.kernels) for each in gpu.gpu_backends()] == [
        ("GPU 0", "triton"),
        ("GPU 1", "triton"),
    ]


def test_amds_gpus_without_matrix_cores_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, amd("gfx906:sramecc+:xnack-", "AMD Instinct MI50"), hip="6.4.4")
    assert gpu.why_not() == "AMD Instinct MI50 is gfx906, and the kernels are for gfx942, gfx11"
    with pytest.raises(UnavailableError, match="gfx906"):
        gpu.gpu_backends()


@pytest.mark.parametrize(("threads", "family"), [(64, "cdna"), (32, "rdna")])
def test_kernels_have_tiles_of_amds_gpus(monkeypatch: pytest.MonkeyPatch, threads: int, family: str) -> None:
    found(monkeypatch, amd("gfx950:sramecc+:xnack-"), hip="7.0.0")
    driver = SimpleNamespace(
        get_current_target=lambda: SimpleNamespace(warp_size=threads),
        utils=SimpleNamespace(get_device_properties=lambda index: {"max_shared_mem": 160 << 10}),
    )
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    assert family_of(GPU) == family
    assert _tiles_of(0) is TILES[-1]
    for remembered in (family_of, _tiles_of):
        remembered.cache_clear()


def test_storage_moves_where_there_is_no_virtual_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, amd("gfx942"), hip="6.4.4")
    assert isinstance(planes.plane(1 << 40, (8, 128), torch.float16, GPU), MovingPlane)


@pytest.mark.parametrize("supported", [0, 1])
def test_the_driver_is_asked_for_virtual_memory(monkeypatch: pytest.MonkeyPatch, supported: int) -> None:
    """NVIDIA's GPUs lack it in some virtual machines."""
    card = SimpleNamespace(name="NVIDIA A100", total_memory=40 << 30, major=8, minor=0)
    found(monkeypatch, card, hip=None)
    assert gpu.describe_gpus()["gpus"][0]["architecture"] == "compute capability 8.0"
    asked = []

    def attribute(value: Any, number: int, device: int) -> int:
        asked.append((number, device))
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = supported
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetAttribute=attribute)
    monkeypatch.setattr(virtual_memory, "_driver", lambda: driver)
    assert planes.can_reserve(torch.device("cuda", 1)) == bool(supported)
    assert asked == [(102, 1)]
    virtual_memory.is_available.cache_clear()
