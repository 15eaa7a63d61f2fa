"""The server's report on its models' caches."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.servers import Server
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.e2e

NOT_IN_MEMORY = "model 'tiny' is not in memory; ask it something first"


@pytest.fixture
def fresh(server: Server) -> Server:
    """Return the server with no model in memory."""
    server.unload()
    return server


def test_caches_of_loaded_models_are_shown(fresh: Server) -> None:
    with fresh.http as http:
        assert http.get("/api/debug/cache").json() == {"models": []}
        refused = http.get("/api/debug/cache", params={"model": "tiny"})
        assert refused.status_code == 400
        assert refused.json() == {"error": NOT_IN_MEMORY}
        assert http.get("/api/debug/cache", params={"model": "nobody"}).status_code == 404

        options = {"temperature": 0, "num_predict": 5, "num_ctx": 128}
        body = {"model": "tiny", "prompt": "hello world", "stream": False, "options": options}
        done = http.post("/api/generate", json=body).json()
        count = done["prompt_eval_count"] + done["eval_count"] - 1  # the last token is never evaluated
        for query in ({}, {"model": "tiny"}):
            (model,) = http.get("/api/debug/cache", params=query).json()["models"]
            assert model["name"] == "tiny:latest"
            (cache,) = model["caches"]
            assert (cache["kind"], cache["layers"]) == ("causal", [0, 1])
            assert cache["capacity"] % 128 == 0
            assert cache["provided_bytes"] > 0
            held = [sequence for sequence in cache["sequences"] if sequence["cells"]]
            assert held == [{"cells": list(range(count)), "positions": list(range(count))}]
        assert http.post("/api/debug/cache").status_code == 405


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {"models": []}),
        ({"model": "tiny"}, {"error": NOT_IN_MEMORY}),
    ],
)
def test_model_that_vanishes_during_inspection_is_omitted(
    fresh: Server, query: dict[str, str], expected: object
) -> None:
    with ThreadPoolExecutor(1) as pool:
        fresh.client.generate(model="tiny", prompt="hello", options={"num_predict": 1})
        runner = fresh.runner()
        runner.suspend()
        look = pool.submit(fresh.http.get, "/api/debug/cache", params=query)
        time.sleep(0.5)  # the answer is the same whether or not the request has arrived by then
        assert not look.done()
        runner.kill()
        assert look.result(timeout=PATIENCE_S).json() == expected


def test_busy_model_is_shown_between_its_steps(fresh: Server) -> None:
    stream = fresh.client.generate(
        model="endless", prompt="once", stream=True, options={"num_predict": -1, "temperature": 0}
    )
    next(stream)
    lengths = []
    with fresh.http as http:
        for _ in range(3):
            (model,) = http.get("/api/debug/cache").json()["models"]
            (held,) = [s for s in model["caches"][0]["sequences"] if s["cells"]]
            assert held["positions"] == list(range(len(held["cells"])))
            lengths.append(len(held["cells"]))
            next(stream)
    assert lengths == sorted(lengths)
    stream.close()
