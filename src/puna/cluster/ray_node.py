"""Ray's processes of this machine: started as a head or a worker, and ended with their parent."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from puna.cluster.credentials import protection
from puna.cluster.node import LEAVING_FILE
from puna.cluster.settings import ClusterSettings
from puna.cluster.start_ray import keep_loopback
from puna.errors import PunaError

#: Blobs travel through Ray's object store in parts, so it needs little.
_OBJECT_STORE_BYTES: Final = 256 << 20
_START_TIMEOUT_S: Final = 180.0
_STOP_TIMEOUT_S: Final = 10.0
#: How often a worker looks whether Ray runs and whether it may leave.
_LOOK_S: Final = 0.5
#: A head that is silent for so long is gone.
_UNHEARD_S: Final = 10.0
#: A node that is silent for about as long is lost.
_HEALTH: Final = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
}

_log = logging.getLogger(__name__)


def check_installed() -> None:
    """Raise PunaError if Ray is not there."""
    if importlib.util.find_spec("ray") is None:
        raise PunaError("a cluster needs the extra: pip install 'puna[cluster]'")


class RayNode:
    """Ray's processes of one node, children of this process, in a session of their own."""

    def __init__(self, settings: ClusterSettings, environment: Mapping[str, str]) -> None:
        """Start them: as the head, or joining `settings.join`. Raises PunaError."""
        self.environment = {
            **protection(settings.host, settings.folder, environment),
            **_HEALTH,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # we drain before
            "RAY_memory_monitor_refresh_ms": "0",  # it would kill runners where models fill the memory
            "RAY_task_events_report_interval_ms": "0",  # nobody reads these, and they take processor time
            "RAY_enable_metrics_collection": "0",
            "RAY_worker_niceness": "0",  # by default, runners would yield to every other program
        }
        self.address = settings.address
        head = ["--head", "--port", str(settings.port), "--include-dashboard=false"]
        head.append("--no-monitor")  # it starts and ends machines, which nobody asks of it
        role = ["--address", settings.join] if settings.join else head
        command = [
            sys.executable, "-m", "puna.cluster.start_ray", *role, "--block",
            "--node-ip-address", settings.host, "--include-log-monitor=false",
            "--disable-usage-stats", "--object-store-memory", str(_OBJECT_STORE_BYTES),
            "--min-worker-port=0", "--max-worker-port=0", "--log-style=record", "--log-color=false",
            *(["--temp-dir", settings.temp] if settings.temp and not settings.join else []),
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closed by the system when this process dies
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**environment, **self.environment},
                text=True,
            )
        except OSError as error:
            raise PunaError(f"Ray cannot be started: {error}") from error
        self._await_start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _await_start(self) -> None:
        """Return once Ray has started. Raises PunaError with what it said last if it does not."""
        assert self._process.stdout is not None
        said: deque[str] = deque(maxlen=5)
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.close()

        timer = threading.Timer(_START_TIMEOUT_S, expire)
        timer.start()
        try:
            for line in self._process.stdout:
                said.append(line.strip())
                if "Ray runtime started" in line:
                    # What it says from now on is read, so that it never waits, and dropped.
                    threading.Thread(target=deque, args=(self._process.stdout, 0), daemon=True).start()
                    return
        finally:
            timer.cancel()
        self.close()
        within = f" within {_START_TIMEOUT_S:g} s" if expired.is_set() else ""
        raise PunaError(f"Ray did not start at {self.address}{within}: " + " / ".join(said))


@contextlib.contextmanager
def connected(settings: ClusterSettings) -> Iterator[None]:
    """Be the head of a cluster, for the length of the block: of Ray's own here, or of one that runs already.

    Raises PunaError.
    """
    check_installed()
    with contextlib.ExitStack() as stack:
        address = settings.ray
        if address:
            os.environ.update(protection(settings.host, settings.folder, os.environ))
        else:
            node = RayNode(settings, os.environ)
            stack.callback(node.close)
            os.environ.update(node.environment)
            address = node.address
        import ray  # reads the environment once

        keep_loopback()
        _log_errors()
        try:
            ray.init(address=address, namespace="puna", log_to_driver=False, configure_logging=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise PunaError(f"cannot connect with Ray at {address}: {error}") from error
        stack.callback(ray.shutdown)
        yield


def _log_errors() -> None:
    """Log the errors that Ray's processes report, which Ray would print on standard output.

    Nobody may read that, and then Ray's thread waits for it, and its end for the thread.
    """
    from ray._private import worker

    def log(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        _log.warning("Ray: %s", " / ".join(line.strip() for line in data["lines"]))

    worker.print_to_stdstream = log


def work(settings: ClusterSettings) -> int:
    """Be a worker of the head `settings.join` until SIGINT or SIGTERM, and return the exit status.

    The first signal drains this node; the second ends it at once. Raises PunaError.
    """
    check_installed()
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.put(number))
    with tempfile.TemporaryDirectory(prefix="puna-node-") as folder:
        leaving = Path(folder) / "leaving"
        node = RayNode(settings, {**os.environ, LEAVING_FILE: str(leaving)})
        try:
            print(f"Joined the cluster at {settings.join} as {settings.host}; Ctrl-C leaves it", flush=True)
            while node.running and _next(signals) is None:
                pass
            if not node.running:
                print(f"Error: Ray has ended; is the head at {settings.join} gone?", file=sys.stderr)
                return 1
            leaving.touch()
            print("Leaving once running answers have ended; Ctrl-C again leaves now", flush=True)
            heard_s, heard = time.monotonic(), _touched(leaving)
            while node.running and heard is not None and _next(signals) is None:
                if (now := _touched(leaving)) != heard:
                    heard_s, heard = time.monotonic(), now
                elif time.monotonic() - heard_s > _UNHEARD_S:
                    break
        finally:
            node.close()
    return 0


def _touched(leaving: Path) -> int | None:
    """Return when the head last said that it still has work on this node; None once it has none."""
    try:
        return leaving.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _next(signals: queue.SimpleQueue[int]) -> int | None:
    """Return a signal that arrives soon."""
    with contextlib.suppress(queue.Empty):
        return signals.get(timeout=_LOOK_S)
    return None
