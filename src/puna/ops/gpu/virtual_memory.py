"""Address space on a CUDA device, backed by memory only where it is used.

The calls are those of CUDA's driver for virtual memory (CUDA C++ Programming Guide, "Virtual Memory
Management"): a range is reserved once, and physical memory is mapped into it piece by piece, so that storage
grows without moving. Recorded graphs hold addresses.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED: memory of the device
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_SUPPORTED = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocFlags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", _AllocFlags),
    ]


class _Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


@cache
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    size, address, handle = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64
    driver.cuMemGetAllocationGranularity.argtypes = [ctypes.POINTER(size), ctypes.c_void_p, ctypes.c_int]
    driver.cuMemAddressReserve.argtypes = [ctypes.POINTER(address), size, size, address, address]
    driver.cuMemAddressFree.argtypes = [address, size]
    driver.cuMemCreate.argtypes = [ctypes.POINTER(handle), size, ctypes.c_void_p, address]
    driver.cuMemRelease.argtypes = [handle]
    driver.cuMemMap.argtypes = [address, size, size, handle, address]
    driver.cuMemUnmap.argtypes = [address, size]
    driver.cuMemSetAccess.argtypes = [address, size, ctypes.c_void_p, size]
    driver.cuDeviceGetAttribute.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int]
    driver.cuGetErrorName.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return driver


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if not status:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorName(status, ctypes.byref(text))
    message = f"{name}: {(text.value or b'unknown error').decode()}"
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"the GPU is out of memory ({message})")
    raise RuntimeError(message)


@cache
def is_available(device: int) -> bool:
    """Whether a GPU's driver has virtual memory: AMD's has none, nor NVIDIA's in some virtual machines."""
    if torch.version.hip is not None:
        return False
    supported = ctypes.c_int()
    _call("cuInit", 0)
    _call("cuDeviceGetAttribute", ctypes.byref(supported), _SUPPORTED, device)
    return bool(supported.value)


class AddressRange:
    """Up to `size` bytes at a fixed address of a CUDA device, without memory at first."""

    def __init__(self, size: int, device: torch.device) -> None:
        torch.zeros(1, device=device)  # the driver's calls need the device's context
        self.device = torch.cuda.current_device() if device.index is None else device.index
        place = _Location(_ON_DEVICE, self.device)
        self._properties = _Properties(type=_PINNED, location=place)
        self._access = _Access(place, _READ_WRITE)
        step = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(self._properties), 0)
        self._step = step.value
        self.size = -(-max(size, 1) // self._step) * self._step
        address = ctypes.c_uint64()
        _call("cuMemAddressReserve", ctypes.byref(address), self.size, 0, 0, 0)
        self.address: int = address.value
        self._mapped: dict[int, tuple[int, int]] = {}  # offset: its size and handle
        self._end = 0  # everything before has memory

    def provide(self, size: int) -> None:
        """Back the first `size` bytes; new memory is zero. Raises `MemoryError`."""
        end = min(-(-size // self._step) * self._step, self.size)
        if end <= self._end:
            return
        begin, count = self._end, end - self._end
        handle = ctypes.c_uint64()
        create = ("cuMemCreate", ctypes.byref(handle), count, ctypes.byref(self._properties), 0)
        try:
            _call(*create)
        except MemoryError:
            torch.cuda.empty_cache()  # torch may keep memory that it does not use
            _call(*create)
        _call("cuMemMap", self.address + begin, count, 0, handle, 0)
        _call("cuMemSetAccess", self.address + begin, count, ctypes.byref(self._access), 1)
        self._mapped[begin] = count, handle.value
        self._end = end
        device_bytes(self.address + begin, count, self.device).zero_()

    def release(self, begin: int) -> int:
        """Give back the pieces of memory that lie behind `begin`; return where memory ends now."""
        for offset in sorted(self._mapped, reverse=True):
            if offset < begin:
                break
            torch.cuda.synchronize(self.device)  # a kernel may still read it
            size, handle = self._mapped.pop(offset)
            _call("cuMemUnmap", self.address + offset, size)
            _call("cuMemRelease", handle)
            self._end = offset
        return self._end

    def close(self) -> None:
        """Release everything; the address must not be used any more."""
        if self.address:
            self.release(0)
            _call("cuMemAddressFree", self.address, self.size)
            self.address = 0

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self.close()


class _Memory:
    """Bytes at an address, in the form in which torch takes memory of others."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def device_bytes(address: int, size: int, device: int) -> torch.Tensor:
    """Return uint8 [size] over memory of a CUDA device, which the caller keeps alive."""
    return torch.as_tensor(_Memory(address, size), device=torch.device("cuda", device))
