"""Processes and the service manager that starts them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from puna.system.processes import report_ready


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_service_manager_is_told_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = str(tmp_path / "notify")
        try:
            manager.bind(name if kind == "file" else f"\0{name}")
        except OSError:
            pytest.skip("this system has no abstract sockets")
        monkeypatch.setenv("NOTIFY_SOCKET", name if kind == "file" else f"@{name}")
        report_ready()
        assert manager.recv(100) == b"READY=1"
        assert "NOTIFY_SOCKET" not in os.environ  # the server's processes are not the service
        report_ready()
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "vsock:2:1234"])
def test_nobody_is_told_where_nobody_listens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    report_ready()
