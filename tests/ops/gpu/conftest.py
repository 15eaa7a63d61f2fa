"""The device that kernels are tested on: torch's CPU device in Triton's interpreter, or a GPU."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it has no build for this machine")

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.ops.gpu import interpreter

    interpreter.repair()


@pytest.fixture(params=["fixed", "moving"])
def place_of_storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether storage stays where it is, or moves whenever it grows, as where there is no virtual memory."""
    from puna.ops.gpu import planes

    if request.param == "moving":
        monkeypatch.setattr(planes, "can_reserve", lambda device: False)
        monkeypatch.setattr(planes, "STEP", 1)
    return str(request.param)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device `PUNA_GPU_DEVICE` names, or else the CPU."""
    return torch.device(os.environ.get("PUNA_GPU_DEVICE", "cpu"))
