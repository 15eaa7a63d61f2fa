"""The memory that this machine can give to a process."""

from __future__ import annotations

import resource

import numpy as np
import psutil
import pytest

from puna import machine
from puna.system import memory


def test_address_space_limit_also_limits_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = psutil.Process().memory_info().vms
    monkeypatch.setattr(resource, "getrlimit", lambda _: (mapped + (64 << 20), resource.RLIM_INFINITY))
    assert 0 < machine.available_memory() < 65 << 20
    assert 0 < memory.available_address_space() < 65 << 20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (mapped // 2, resource.RLIM_INFINITY))
    assert machine.available_memory() == memory.available_address_space() == 0


def test_unlimited_address_space_exceeds_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert memory.available_address_space() > machine.available_memory() > 0


def test_a_process_may_be_allowed_less_than_is_free() -> None:
    machine.allow_memory(32 << 20)
    try:
        assert machine.available_memory() <= 32 << 20
        taken = np.ones(256 << 17)  # much more: the system may take back pages of files meanwhile
        assert machine.available_memory() == 0
        machine.allow_memory(None)
        assert machine.available_memory() > 0
        del taken
    finally:
        machine.allow_memory(None)
