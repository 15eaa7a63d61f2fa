"""A template hurts at most the model that brought it: the server never runs one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.servers import add_model, running
from tests.tiny import TinyLlama, tiny_llama_gguf

pytestmark = pytest.mark.e2e

HELLO = [{"role": "user", "content": "hello"}]
#: Takes hours.
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages }}"
#: Jinja computes constants when it compiles; this one has 2 GB.
HUGE = "{% if true %}{{ 'x' | center(2000000000) | length }}{% endif %}"


def most_memory(pid: int) -> int:
    """The most bytes that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_a_template_that_never_ends_hurts_its_model_alone(tmp_path: Path, tiny_file: Path) -> None:
    with running(tmp_path, PUNA_STEP_TIMEOUT="2s") as server:
        add_model(server, "tiny", tiny_file)
        add_model(server, "other", tiny_llama_gguf(tmp_path / "other.gguf", TinyLlama(seed=5)))
        server.client.create(model="evil", from_="other", template=ENDLESS)
        assert server.client.chat("tiny", HELLO, options={"num_predict": 2}).done
        body = {"model": "evil", "messages": HELLO, "stream": False}
        with ThreadPoolExecutor() as pool:
            hanging = pool.submit(lambda: server.http.post("/api/chat", json=body))
            answered = 0
            while not hanging.done():
                assert server.client.chat("tiny", HELLO, options={"num_predict": 2}).done
                assert server.http.get("/api/version").elapsed.total_seconds() < 1.5
                answered += 1
        assert answered > 1
        assert hanging.result().status_code == 500
        assert "it did not answer for 2 s" in hanging.result().json()["error"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the most memory is read from /proc")
def test_the_server_computes_nothing_of_a_template(tmp_path: Path, tiny_file: Path) -> None:
    with running(tmp_path) as server:
        add_model(server, "tiny", tiny_file)
        before = most_memory(server.process.pid)
        server.client.create(model="huge", from_="tiny", template=HUGE)
        assert server.client.show("huge").capabilities == ["completion"]
        assert server.http.get("/api/tags").status_code == 200
        assert most_memory(server.process.pid) - before < 200 << 20
