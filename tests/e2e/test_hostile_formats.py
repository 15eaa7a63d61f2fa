"""Formats that take too much time or memory, while others want answers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from puna.grammar.compiler.protocol import COMPILE_S, FOLLOW_S, MEMORY_BYTES
from tests.e2e.canary import canary
from tests.e2e.servers import Server, add_model, running
from tests.e2e.tools.calling import TEMPLATE
from tests.grammar.hostile import AMBIGUOUS, LARK, PATTERNS, patterns
from tests.processes import children
from tests.tiny.llama import vocabulary
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

#: Limit on the answers to others, who would wait forever without processes that can be killed.
_WITHIN_S = 1.0
#: Memory of a process without a format: Python, the library and the vocabulary of a tiny model.
_EMPTY_BYTES = 256 << 20
_TOO_MUCH = (
    f"{COMPILE_S:g} s of processor time, the limit",
    f"{MEMORY_BYTES >> 20} MB of memory, the limit",
    "200,000 steps, the limit",
)
#: Biases that make an answer go on for as long as its grammar allows.
_ENDLESS = {str(vocabulary().index(end)): -100 for end in ("<|end|>", "<|im_end|>")}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, tiny_file: Path) -> Iterator[Server]:
    """Run a server that ends a runner whose steps take more than three seconds."""
    with running(tmp_path_factory.mktemp("models"), PUNA_STEP_TIMEOUT="3s") as server:
        add_model(server, "tiny", tiny_file)
        # Schemas of tools are longer than the model's context.
        template = TEMPLATE.replace("{{ tool | tojson }}", "{{ tool.function.name }}")
        server.client.create(model="tiny", from_="tiny", template=template)
        # The first format starts the processes and loads the vocabulary.
        assert ask(server, guided_regex="a").status_code == 200
        yield server


def ask(server: Server, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "seed": 1, **fields}
    return server.http.post("/v1/completions", json=body, timeout=PATIENCE_S)


def compilers(server: Server) -> list[psutil.Process]:
    """Return all grammar processes of the server's models."""
    return children("grammar/compiler", server.process.pid)


@contextmanager
def unharmed(server: Server) -> Iterator[None]:
    """Check that others are answered in time throughout the block, by the same runner, in bounded memory."""
    runner = server.runner()
    over, most = threading.Event(), {"server": 0, "runner": 0, "compiler": 0}

    def watch() -> None:
        while not over.wait(0.02):
            found = [("server", psutil.Process(server.process.pid)), ("runner", runner)]
            found += [("compiler", process) for process in compilers(server)]
            for name, process in found:
                with contextlib.suppress(psutil.Error):  # it has ended in the meantime
                    most[name] = max(most[name], process.memory_info().rss)

    before = runner.memory_info().rss
    with ThreadPoolExecutor(1) as pool, canary(server, model="tiny") as others:
        watching = pool.submit(watch)
        try:
            yield
            wait_until(lambda: len(others.took_s) == 2, "an answer beside it")
        finally:
            over.set()
        watching.result()
    assert server.runner() == runner
    assert most["runner"] < before + (256 << 20)
    assert most["server"] < 1 << 30
    assert most["compiler"] < MEMORY_BYTES + _EMPTY_BYTES
    others.check(_WITHIN_S)


def tool_request(parameters: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "add", "parameters": parameters}
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "max_tokens": 3,
    }


@pytest.mark.parametrize("count", [13, *(pytest.param(n, marks=pytest.mark.thorough) for n in (40, 199))])
def test_schema_of_intersected_patterns_is_refused_with_the_limit(attacked: Server, count: int) -> None:
    with unharmed(attacked):
        answer = ask(attacked, guided_json=patterns(count))
    assert answer.status_code == 400
    assert any(limit in answer.text for limit in _TOO_MUCH), answer.text
    assert ask(attacked, guided_regex="ab").json()["choices"][0]["text"] == "ab"


def test_schema_of_intersected_patterns_is_refused_in_grammars_and_tools(attacked: Server) -> None:
    with unharmed(attacked):
        grammar = ask(attacked, guided_grammar="start: %json " + json.dumps(PATTERNS))
        tools = attacked.http.post("/v1/chat/completions", json=tool_request(PATTERNS), timeout=PATIENCE_S)
    for answer in (grammar, tools):
        assert answer.status_code == 400
        assert any(limit in answer.text for limit in _TOO_MUCH), answer.text


def at_work(server: Server, before: list[psutil.Process]) -> list[psutil.Process]:
    """Return new grammar processes that have worked for a while."""
    found = []
    for process in compilers(server):
        with contextlib.suppress(psutil.Error):  # it has ended in the meantime
            if process not in before and process.cpu_times().user > 0.2:
                found.append(process)
    return found


def test_disconnecting_stops_the_compilation(attacked: Server) -> None:
    before = compilers(attacked)
    body = {"model": "tiny", "prompt": "hello", "guided_json": patterns(30), "max_tokens": 3}
    with attacked.open_request("/v1/completions", body):
        wait_until(lambda: bool(at_work(attacked, before)), "a process that compiles")
        (process,) = at_work(attacked, before)
        process.suspend()  # so that it does not end by itself
    wait_until(lambda: not process.is_running(), "the end of the process")
    wait_until(lambda: attacked.running_requests() == [], "the end of the request")
    assert set(compilers(attacked)) <= set(before)


@pytest.mark.parametrize(
    ("grammar", "limits"),
    [
        pytest.param(
            AMBIGUOUS, (f"{FOLLOW_S:g} s of processor time, the limit",), marks=pytest.mark.thorough
        ),
        (
            LARK,
            (
                f"{FOLLOW_S:g} s of processor time, the limit",
                f"{MEMORY_BYTES >> 20} MB of memory, the limit",
            ),
        ),
    ],
    ids=["ambiguous", "patterns after a while"],
)
def test_answer_with_slow_masks_delays_no_other(
    attacked: Server, grammar: str, limits: tuple[str, ...]
) -> None:
    fields = {"guided_grammar": grammar, "max_tokens": 200, "logit_bias": _ENDLESS}
    with unharmed(attacked), ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, attacked, **fields) for _ in range(2)]
        answers += [pool.submit(ask, attacked, guided_regex="[a-z]{30}", max_tokens=50)]
        *slow, other = [answer.result() for answer in answers]
    for answer in slow:
        assert "error" in answer.json(), answer.text
        assert any(limit in answer.text for limit in limits), answer.text
    assert other.status_code == 200


def test_disconnecting_stops_computing_masks(attacked: Server) -> None:
    before = compilers(attacked)
    body = {
        "model": "tiny",
        "prompt": "hello",
        "guided_grammar": AMBIGUOUS,
        "max_tokens": 200,
        "logit_bias": _ENDLESS,
    }
    with attacked.open_request("/v1/completions", body):
        wait_until(lambda: bool(at_work(attacked, before)), "a process that follows the answer")
        (answer,) = at_work(attacked, before)
        answer.suspend()  # so that it does not end by itself
    wait_until(lambda: not answer.is_running(), "the end of the process")
    wait_until(lambda: attacked.running_requests() == [], "the end of the request")


def test_eight_concurrent_formats_delay_no_request_without_one(attacked: Server) -> None:
    def schema(number: int) -> dict[str, Any]:
        names = [f"field_{number}_{place}" for place in range(900)]
        return {
            "type": "object",
            "properties": {name: {"type": "string", "maxLength": 200} for name in names},
            "required": names,
        }

    with unharmed(attacked), ThreadPoolExecutor(8) as pool:
        answers: list[Future[httpx.Response]] = [
            pool.submit(ask, attacked, guided_json=schema(number)) for number in range(8)
        ]
        found = [answer.result() for answer in answers]
    assert [answer.status_code for answer in found] == [200] * 8
