"""Checks for leaks: resources that an idle server must have released."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.servers import Server
from tests.soak.asking import LIMIT_S, check
from tests.soak.questions import CONTEXT, MODELS, PARALLEL
from tests.waiting import wait_until

#: How long a server may take to become idle.
REST_S = 120.0
#: How much memory may grow when the same work is repeated: heap layout is never quite the same.
SERVER_GROWTH_BYTES = 12 << 20
RUNNER_GROWTH_BYTES = 24 << 20
#: Log messages that indicate a defect or an unclosed resource.
_BAD_SIGNS = (
    "Traceback",
    "never retrieved",
    "never awaited",
    "unclosed",
    "Exception ignored",
    "was destroyed",
)


@dataclass(frozen=True)
class Holdings:
    """Resources held by a server without loaded models."""

    runners: int
    descriptors: int  # files and sockets
    memory_bytes: int

    def __str__(self) -> str:
        mib = self.memory_bytes / 2**20
        return f"{self.runners} runners, {self.descriptors} open descriptors, {mib:.1f} MiB"


def wait_for_rest(http: httpx.Client) -> None:
    """Wait until the server reports that no request is running or waiting."""

    def at_rest() -> bool:
        models = http.get("/api/ps").json()["models"]
        waiting = [value for name, _, value in metrics(http) if name == "puna_requests_waiting"]
        return not any(waiting) and all(
            model.get("responding") and model["requests_running"] == model["requests_waiting"] == 0
            for model in models
        )

    wait_until(at_rest, "an idle server", REST_S)


def metrics(http: httpx.Client) -> list[tuple[str, dict[str, str], float]]:
    """Return all samples of /metrics as name, labels and value."""
    page = http.get("/metrics")
    check(page)
    families = text_string_to_metric_families(page.text)
    return [(one.name, one.labels, one.value) for family in families for one in family.samples]


def check_cells(http: httpx.Client) -> None:
    """Check, on an idle server, that every cell in use belongs to a cached sequence."""
    models = http.get("/api/debug/cache").json()["models"]
    samples = metrics(http)
    for model in models:
        used: dict[str, list[float]] = {}
        for name, labels, value in samples:
            matches = name == "puna_cache_cells" and labels["model"] == model["name"]
            if matches and labels["state"] == "used":
                used.setdefault(labels["cache"], []).append(value)
        held: dict[str, list[float]] = {}
        for cache in model["caches"]:
            held.setdefault(cache["kind"], []).append(_held(cache))
        assert used == held, f"{model['name']}: cells in use {used}, but sequences hold {held}"


def _held(cache: dict[str, Any]) -> float:
    cells = {cell for sequence in cache["sequences"] for cell in sequence["cells"]}
    assert all(0 <= cell < cache["capacity"] for cell in cells), f"cells beyond {cache['capacity']}"
    return len(cells)


def check_capacity(url: str, model: str) -> None:
    """Check that the maximum number of parallel requests fit, each as long as the context.

    Cached sequences are evicted to make room; leaked cells would not be. The model's answers must not end
    before the context is full.
    """
    with httpx.Client(base_url=url, timeout=LIMIT_S) as http, ThreadPoolExecutor() as pool:

        def fill(i: int) -> None:
            prompt = f"{chr(ord('A') + i)} is the first letter. " * 4
            body = {"model": model, "prompt": prompt, "raw": True, "shift": False, "stream": False}
            answer = http.post("/api/generate", json=body | {"options": {"temperature": 0}})
            check(answer)
            assert answer.json()["done_reason"] == "length", answer.text

        list(pool.map(fill, range(PARALLEL)))
        (shown,) = http.get("/api/debug/cache", params={"model": model}).json()["models"]
    (cache,) = [cache for cache in shown["caches"] if cache["kind"] == "causal"]
    lengths = sorted(len(sequence["cells"]) for sequence in cache["sequences"])
    assert lengths[-PARALLEL:] == [CONTEXT] * PARALLEL, (
        f"{model}: {PARALLEL} sequences should have {CONTEXT} cells each, not {lengths[-PARALLEL:]}"
    )


def runner_memory(server: Server) -> dict[int, int]:
    """Return the resident bytes of each runner, by process id."""
    return {runner.pid: runner.memory_info().rss for runner in server.runners()}


def grown_runners(before: dict[int, int], after: dict[int, int]) -> str | None:
    """Return a message listing surviving runners that have grown too much, or None."""
    grown = {pid: after[pid] - size for pid, size in before.items() if pid in after}
    too_much = {pid: f"{size / 2**20:.1f} MiB" for pid, size in grown.items() if size > RUNNER_GROWTH_BYTES}
    return f"runners grew: {too_much}" if too_much else None


def empty(server: Server, http: httpx.Client, before: Holdings | None = None) -> Holdings:
    """Unload all models, wait until the server holds no more than `before`, and return its holdings.

    Raises AssertionError if it keeps more, or has zombie processes.
    """
    for model in MODELS:
        check(http.post("/api/generate", json={"model": model, "keep_alive": 0}))
    wait_until(lambda: not http.get("/api/ps").json()["models"], "no loaded model", REST_S)
    process = psutil.Process(server.process.pid)

    def look() -> Holdings:
        return Holdings(len(process.children(recursive=True)), process.num_fds(), process.memory_info().rss)

    def is_back() -> bool:
        now = look()
        return before is None or (now.runners == before.runners and now.descriptors <= before.descriptors)

    try:
        wait_until(is_back, "released resources", REST_S)
    except AssertionError:
        children = [(child.status(), child.cmdline()) for child in process.children(recursive=True)]
        open_files = process.open_files(), process.net_connections()
        raise AssertionError(f"before: {before}; now: {look()}; {children}; {open_files}") from None
    return look()


def bad_signs(server: Server) -> list[str]:
    """Return lines of the server's log that indicate a defect, with their context."""
    lines = server.log.read_text(errors="replace").splitlines()
    found = [i for i, line in enumerate(lines) if any(sign in line for sign in _BAD_SIGNS)]
    return ["\n".join(lines[max(i - 2, 0) : i + 40]) for i in found[:3]]
