"""Runners that are processes of this machine."""

from __future__ import annotations

from puna.runner.client import LocalRunner


class LocalLauncher:
    """Starts a process for each runner; see `puna.server.fleet.runner.Launcher`."""

    async def launch(self) -> LocalRunner:
        return await LocalRunner.spawn()
