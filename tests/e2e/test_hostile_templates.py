"""A hostile template affects only its own request: not the server, nor other streams of the same model."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from puna.chat.templates.jinja import MAX_TEMPLATE_CHARACTERS, PATIENCE_S
from tests.chat.templates.hostile import HOSTILE, TIME
from tests.e2e.servers import Server
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

HELLO = [{"role": "user", "content": "hello"}]
#: Half the maximum length of a template, and slow to parse.
SLOW_TO_PARSE = "{% if true %}{{ messages }}{% endif %}" + "{{ 1 + 2 - 3 * 4 }}" * (
    MAX_TEMPLATE_CHARACTERS // 2 // 19
)
#: One for each limit; the renderer's own tests cover all of them.
ONE_OF_EACH = ("jinja: powers in one call of C", "go: a text that doubles", "jinja: much text")
#: Jinja computes constants when compiling; this one has 2 GB.
HUGE = "{% if true %}{{ 'x' | center(2000000000) | length }}{% endif %}"


def max_memory(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


class Canary:
    """A stream that restarts whenever it ends, counting the pieces received."""

    def __init__(self) -> None:
        self.pieces = 0
        self.failure: object = None
        self._ended = threading.Event()

    def read(self, server: Server) -> None:
        body = {"model": "endless", "prompt": "a", "raw": True, "options": {"num_predict": -1}}
        while self.failure is None and not self._ended.is_set():
            with server.http.stream("POST", "/api/generate", json=body) as stream:
                for data in stream.iter_raw():
                    if self._ended.is_set():
                        return
                    if b'"error":' in data:
                        self.failure = data
                    self.pieces += data.count(b"\n")

    @contextmanager
    def streaming(self, server: Server) -> Iterator[None]:
        thread = threading.Thread(target=self.read, args=(server,))
        thread.start()
        try:
            self.wait_for_more(3)
            yield
            self.wait_for_more(3)
        finally:
            self._ended.set()
            thread.join(60)

    def wait_for_more(self, count: int) -> None:
        before = self.pieces
        wait_until(lambda: self.pieces >= before + count or self.failure is not None, "more of the stream")
        assert self.failure is None


@pytest.fixture(scope="module")
def endless_server(servers: Callable[..., Server]) -> Server:
    return servers(PUNA_STEP_TIMEOUT="3s")


def renderers(server: Server) -> list[psutil.Process]:
    """Return renderers of all models, including zombies."""
    return server.runner().children()


def versions_until(pending: Future[httpx.Response], server: Server) -> int:
    """Request the version until `pending` has finished, and return how often: at least once."""
    count = 0
    with server.http as http:
        while count == 0 or not pending.done():
            assert http.get("/api/version").status_code == 200
            count += 1
            time.sleep(0.005)  # otherwise the requests themselves would keep the processor busy
    return count


def error_for(server: Server, template: str) -> str:
    """Return the error of a request with this template, while checking that the server answers others."""
    body = {"model": "endless", "prompt": "hi", "template": template, "stream": False}
    with ThreadPoolExecutor() as pool:
        pending = pool.submit(lambda: server.http.post("/api/generate", json=body))
        assert versions_until(pending, server) > 0
    assert pending.result().status_code == 400, pending.result().text
    return str(pending.result().json()["error"])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the most memory is read from /proc")
def test_excessive_template_is_stopped_while_other_streams_continue(endless_server: Server) -> None:
    server = endless_server
    canary = Canary()
    server.unload()
    with canary.streaming(server):
        runner = server.runner()
        before = {pid: max_memory(pid) for pid in (server.process.pid, runner.pid)}
        for name in ONE_OF_EACH:
            template, limit = HOSTILE[name]
            pieces_before = canary.pieces
            # On a busy machine, the wall-clock limit may come first.
            stopped = (limit, f"{PATIENCE_S:g} s") if limit == TIME else (limit,)
            error = error_for(server, template)
            assert any(f"it took more than {bound}, " in error for bound in stopped), (name, error)
            assert limit != TIME or canary.pieces > pieces_before + 10, name
            assert len(renderers(server)) == 1, name
        assert all(max_memory(pid) < size + (64 << 20) for pid, size in before.items())
        assert [other.pid for other in server.runners()] == [runner.pid]


@pytest.mark.slow
def test_quick_request_overtakes_slow_templates(endless_server: Server) -> None:
    server = endless_server
    assert server.client.chat("endless", HELLO, options={"num_predict": 1}).done  # caches its template
    slow, _ = HOSTILE["jinja: a recursive macro"]

    def ask(request_id: str, path: str, **body: object) -> int:
        body |= {"model": "endless", "stream": False, "options": {"num_predict": 1}}
        return server.http.post(path, json=body, headers={"X-Request-Id": request_id}).status_code

    def at_work() -> list[psutil.Process]:
        return [child for child in renderers(server) if child.cpu_times().user > 0.2]

    with ThreadPoolExecutor() as pool:
        hostile = [
            pool.submit(ask, f"slow-{number}", "/api/generate", prompt="hi", template=slow + "x" * number)
            for number in range(2)
        ]
        wait_until(lambda: bool(at_work()), "the first")
        (renderer,) = at_work()
        renderer.suspend()  # so that its processor time lasts until all requests have arrived
        # A raw prompt does not even wait for the template being rendered.
        assert ask("raw", "/api/generate", prompt="a", raw=True) == 200
        assert not any(request.done() for request in hostile)
        quick = pool.submit(ask, "quick", "/api/chat", messages=HELLO)
        wait_until(
            lambda: [one["state"] for one in server.running_requests()] == ["prompt"] * 3, "all requests"
        )
        renderer.resume()
        assert quick.result() == 200
        assert {request.result() for request in hostile} == {400}

    def ended() -> list[str]:
        """Return the requests that have ended, in order."""
        return re.findall("request_id=(quick|slow-.)", server.log.read_text())

    wait_until(lambda: len(set(ended())) == 3, "the lines in the log")
    assert ended()[-1] != "quick"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the most memory is read from /proc")
def test_server_evaluates_no_part_of_a_template(server: Server) -> None:
    before = max_memory(server.process.pid)
    server.client.create(model="huge", from_="tiny", template=HUGE)
    assert server.client.show("huge").capabilities == ["completion"]
    assert server.http.get("/api/tags").status_code == 200
    assert max_memory(server.process.pid) - before < 200 << 20
    server.client.delete("huge")


@pytest.mark.slow
def test_server_keeps_answering_while_it_parses_a_template(server: Server) -> None:
    body = {"model": "tiny", "prompt": "hi", "template": SLOW_TO_PARSE, "stream": False}
    with ThreadPoolExecutor() as pool:
        parsed = pool.submit(lambda: server.http.post("/api/generate", json=body))
        assert versions_until(parsed, server) > 10
        assert parsed.result().status_code in (200, 400)
    body["template"] = "{{ messages }}" + "x" * MAX_TEMPLATE_CHARACTERS
    error = server.http.post("/api/generate", json=body).json()["error"]
    assert error.endswith("longer than 256000 characters")


BROKEN = {
    "{% if %}": "line 1: Expected an expression",  # does not parse
    "{% if true %}{{ 'x' + 1 }}{% endif %}": "line 1: can only concatenate str",  # cannot be rendered
    "{{ .Messages.Name }}": "can't evaluate field Name",
}


@pytest.mark.parametrize("template", BROKEN)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{}, {"_debug_render_only": True}])
def test_broken_template_of_a_request_is_the_requests_error(
    server: Server, template: str, stream: bool, more: dict[str, bool]
) -> None:
    body = {"model": "tiny", "prompt": "hi", "template": template, "stream": stream, **more}
    reply = server.http.post("/api/generate", json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"].startswith("template error: line 1")
    assert BROKEN[template] in reply.json()["error"]


def test_failing_or_refusing_template_of_a_model_is_a_template_error(
    server: Server,
) -> None:
    templates = {
        "failing": "{% if true %}{{ 'x' + 1 }}{% endif %}",
        "refusing": "{% if true %}{{ raise_exception('no') }}{% endif %}",
    }
    for name, status in (("failing", 400), ("refusing", 400)):
        server.client.create(model=name, from_="tiny", template=templates[name])
        for path in ("/api/chat", "/v1/chat/completions"):
            reply = server.http.post(path, json={"model": name, "messages": HELLO})
            assert reply.status_code == status, reply.text
            assert "template error: " in reply.text
        server.client.delete(name)
