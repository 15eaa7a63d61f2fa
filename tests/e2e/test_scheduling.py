"""Loading and unloading of models, and concurrent requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import ollama
import pytest

from tests.e2e.servers import Server, add_model, running
from tests.held import HeldRunners, wait_until_stopped
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

GREEDY = {"temperature": 0, "num_predict": 8}
#: Generates until cancelled by id.
LONG = {
    "model": "endless", "prompt": "hello", "options": {"temperature": 0, "num_predict": -1, "num_ctx": 8192}
}  # fmt: skip


@pytest.fixture(scope="module")
def small(servers: Callable[..., Server], tiny_file: Path) -> Server:
    """Return a server that keeps one model in memory; `twin` shares its file with `tiny`."""
    server = servers(PUNA_MAX_LOADED_MODELS="1")
    add_model(server, "twin", tiny_file)
    return server


def loaded(server: Server) -> list[str | None]:
    return [model.model for model in server.client.ps().models]


def test_models_with_the_same_file_share_a_runner(small: Server) -> None:
    small.client.generate("tiny", "hello", options=GREEDY)
    runner = small.runner()
    small.client.generate("twin", "hello", options=GREEDY)
    assert [process.pid for process in small.runners()] == [runner.pid]
    assert loaded(small) == ["tiny:latest"]


def test_another_model_replaces_an_idle_one(small: Server) -> None:
    small.client.generate("tiny", "hello", options=GREEDY)
    small.client.generate("endless", "hello", options=GREEDY)
    assert loaded(small) == ["endless:latest"]
    wait_until(lambda: len(small.runners()) == 1, "the first runner's end")


@contextmanager
def generating(server: Server) -> Iterator[Callable[[], None]]:
    """Keep a request generating within the block; the function yielded checks that it continues."""

    def generated() -> int:
        (request,) = (one for one in server.running_requests() if one["id"] == "long")
        return int(request["generated"])

    def check_progress() -> None:
        before = generated()
        wait_until(lambda: generated() > before, "more of the answer")

    with ThreadPoolExecutor(1) as pool:
        body = LONG | {"stream": False}
        pending = pool.submit(server.http.post, "/api/generate", json=body, headers={"X-Request-Id": "long"})
        wait_until(
            lambda: any(one["state"] == "generating" for one in server.running_requests()), "its tokens"
        )
        yield check_progress
        assert server.http.post("/api/cancel", json={"id": "long"}).status_code == 200
        assert "the request was cancelled" in pending.result().text


def test_another_model_waits_for_a_busy_one(small: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        with generating(small) as check_progress:
            second = pool.submit(small.client.generate, "tiny", "hello", options=GREEDY)
            waiting = 'puna_requests_waiting{model="tiny:latest",what="load"} 1.0'
            wait_until(lambda: waiting in small.http.get("/metrics").text, "the second request")
            check_progress()
            assert loaded(small) == ["endless:latest"]
        assert second.result().eval_count == 8
    assert loaded(small) == ["tiny:latest"]


def test_another_context_length_causes_no_reload_and_is_capped_by_the_model(small: Server) -> None:
    def runner_for(num_ctx: int | None) -> int:
        options = GREEDY if num_ctx is None else GREEDY | {"num_ctx": num_ctx}
        small.client.generate("tiny", "hello", options=options)
        return small.runner().pid

    small.unload()
    at_64 = runner_for(64)
    assert small.client.ps().models[0].context_length == 64
    assert runner_for(128) == at_64
    assert small.client.ps().models[0].context_length == 128
    assert runner_for(None) == at_64
    assert small.client.ps().models[0].context_length == 256  # the model's own
    assert runner_for(10_000) == at_64  # capped to the same
    # A request's own context length is its limit, whatever others requested.
    body = {"model": "tiny", "prompt": "hello " * 100, "truncate": False, "options": {"num_ctx": 50}}
    refused = small.http.post("/api/generate", json=body)
    assert (refused.status_code, "> 50 maximum" in refused.text) == (400, True)
    assert runner_for(64) == at_64


def test_other_load_options_wait_for_running_requests(small: Server) -> None:
    long = {"temperature": 0, "num_predict": 1500, "num_ctx": 2048}
    with ThreadPoolExecutor(1) as pool:
        stream = small.client.generate("endless", "hello", options=long, stream=True)
        next(stream)
        before = small.runner()
        other = pool.submit(small.client.generate, "endless", "hello", options=GREEDY | {"num_batch": 64})
        assert list(stream)[-1].eval_count == 1500
        assert other.result().eval_count == 8
    assert small.runner().pid != before.pid


def test_stopping_a_busy_model_replies_at_once_and_lets_it_finish(small: Server) -> None:
    with generating(small) as check_progress:
        assert small.client.generate("endless", keep_alive=0).done_reason == "unload"
        assert loaded(small) == ["endless:latest"]
        check_progress()
    wait_until(lambda: loaded(small) == [], "the unloading")


def test_model_is_unloaded_when_keep_alive_ends_and_requests_extend_it(small: Server) -> None:
    def leaves_at() -> datetime:
        (model,) = small.client.ps().models
        assert model.expires_at is not None
        return model.expires_at

    small.client.generate("tiny", "hello", options=GREEDY, keep_alive="1h")
    first = leaves_at()
    small.client.generate("tiny", "hello", options=GREEDY)  # the hour still applies, and starts again
    assert timedelta(0) < leaves_at() - first < timedelta(minutes=30)
    small.client.generate("tiny", "hello", options=GREEDY, keep_alive="1s")
    wait_until(lambda: loaded(small) == [] and not small.runners(), "the unloading")


def test_deleted_model_is_unloaded(small: Server) -> None:
    small.unload()
    small.client.create("gone", from_="tiny")
    small.client.generate("gone", "hello", options=GREEDY)
    assert loaded(small) == ["gone:latest"]
    small.client.delete("GONE")
    assert loaded(small) == []
    wait_until(lambda: not small.runners(), "the runner's end")


def test_model_with_keep_alive_zero_serves_all_waiting_requests(small: Server) -> None:
    small.client.generate("tiny", keep_alive=0)

    def ask(_: int) -> int | None:
        return small.client.generate("tiny", "hello", options=GREEDY, keep_alive=0).eval_count

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == [8] * 6
    wait_until(lambda: loaded(small) == [], "the unloading")


def test_eight_concurrent_requests_answer_as_each_alone(server: Server) -> None:
    prompts = [f"hello {'world ' * i}" for i in range(8)]
    options = {"temperature": 0, "num_predict": 24}

    def ask(prompt: str) -> str | None:
        parts = server.client.chat(
            "tiny", [{"role": "user", "content": prompt}], options=options, stream=True
        )
        return "".join(part.message.content or "" for part in parts)

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, prompts))
    assert together == alone


def test_too_many_requests_waiting_for_a_load_are_refused_at_once(
    tmp_path: Path, tiny_file: Path, held: HeldRunners
) -> None:
    with running(tmp_path, PUNA_MAX_QUEUE="1", **held.settings) as server:
        add_model(server, "tiny", tiny_file)

        def ask(_: int) -> tuple[int, str]:
            body = {"model": "tiny", "prompt": "hello", "stream": False, "options": GREEDY}
            response = server.http.post("/api/generate", json=body)
            return response.status_code, response.json().get("error", "")

        with held.stopping(), ThreadPoolExecutor(6) as pool:
            pending = [pool.submit(ask, number) for number in range(6)]
            wait_until(lambda: sum(one.done() for one in pending) == 4, "four refusals")
            runner = server.runner()
            wait_until_stopped(runner)
            runner.resume()
            answers = sorted(one.result() for one in pending)
        busy = (503, "server busy, please try again.  maximum pending requests exceeded")
        assert answers == [(200, "")] * 2 + [busy] * 4
        assert ask(0) == (200, "")


def test_failed_load_reports_why_and_keeps_other_models(small: Server, tiny_file: Path) -> None:
    damaged = small.models / "damaged.gguf"
    data = bytearray(tiny_file.read_bytes())
    damaged.write_bytes(data.replace(b"blk.1.attn_q.weight", b"blk.1.attn_x.weight"))
    add_model(small, "damaged", damaged)
    small.client.generate("tiny", "hello", options=GREEDY)
    with pytest.raises(ollama.ResponseError, match=r"blk\.1\.attn_q\.weight"):
        small.client.generate("damaged", "hello")
    assert small.client.generate("tiny", "hello", options=GREEDY).eval_count == 8
    assert loaded(small) == ["tiny:latest"]
