"""The server's reports on itself: metrics, `ps` and the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.servers import Server
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "serving.md"
PROMPT = "once upon a time the story"
LONG = {"temperature": 0, "num_predict": -1, "num_ctx": 8192}


@pytest.fixture(scope="module")
def watched(servers: Callable[..., Server]) -> Server:
    """Return a server with one slot that logs JSON."""
    return servers(PUNA_LOG_FORMAT="json", PUNA_NUM_PARALLEL="1")


class Samples:
    """A snapshot of `/metrics`."""

    def __init__(self, server: Server) -> None:
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        wait_until(lambda: self._read(server), "all models to answer")

    def _read(self, server: Server) -> bool:
        """Read the metrics; return False if a model did not answer in time, which leaves some out."""
        response = server.http.get("/metrics")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/plain; version=")
        self._values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }
        answered = [name for name, _ in self._values if name == "puna_step_age_seconds"]
        return len(answered) == self("puna_loaded_models", model=None)

    def __call__(self, name: str, model: str | None = "endless:latest", **labels: str) -> float:
        if model is not None:
            labels["model"] = model
        return self._values.get((name, tuple(sorted(labels.items()))), 0.0)

    def buckets(self, name: str) -> list[float]:
        found = [
            (float(dict(labels)["le"]), value)
            for (found, labels), value in self._values.items()
            if found == name + "_bucket"
        ]
        return [value for _, value in sorted(found)]


def generate(server: Server, prompt: str = PROMPT, **options: Any) -> dict[str, Any]:
    options = {"temperature": 0, "num_predict": 6, "num_ctx": 8192} | options
    body = {"model": "endless", "prompt": prompt, "raw": True, "stream": False, "options": options}
    response = server.http.post("/api/generate", json=body)
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()
    return value


def test_requests_tokens_and_times_are_counted(watched: Server) -> None:
    before = Samples(watched)
    answers = [generate(watched), generate(watched)]
    after = Samples(watched)

    def grown(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert grown("puna_requests_total", outcome="length") == 2
    assert grown("puna_prompt_tokens_total") == sum(answer["prompt_eval_count"] for answer in answers)
    assert grown("puna_generated_tokens_total") == 12
    assert grown("puna_cached_tokens_total") == sum(answer.get("cached", 0) for answer in answers)
    assert answers[1]["cached"] == answers[1]["prompt_eval_count"] - 1
    assert grown("puna_time_to_first_token_seconds_count") == 2
    first_s = grown("puna_time_to_first_token_seconds_sum")
    assert 0 < first_s < sum(answer["total_duration"] for answer in answers) / 1e9
    # Six tokens have five intervals, unless some had to wait for the rest of a character.
    assert 0 < grown("puna_inter_token_seconds_count") <= 10
    for name in ("puna_time_to_first_token_seconds", "puna_inter_token_seconds"):
        counts = after.buckets(name)
        assert all(low <= high for low, high in pairwise(counts))
        assert counts[-1] == after(name + "_count")


def test_metrics_describe_a_loaded_model(watched: Server) -> None:
    generate(watched)
    generate(watched, PROMPT + " world")
    (model,) = watched.http.get("/api/debug/cache").json()["models"]
    (cache,) = model["caches"]
    holders = Counter(cell for sequence in cache["sequences"] for cell in sequence["cells"])
    now = Samples(watched)
    assert now("puna_loaded_models", model=None) == 1
    assert now("puna_load_seconds_count") >= 1
    assert now("puna_cache_cells", cache="causal", state="capacity") >= 8192
    assert now("puna_cache_cells", cache="causal", state="used") == len(holders)
    assert now("puna_cache_cells", cache="causal", state="shared") == sum(
        held > 1 for held in holders.values()
    )
    assert now("puna_requests_running") == now("puna_requests_waiting", what="slot") == 0
    for what in ("process", "weights", "cache"):
        assert now("puna_memory_bytes", what=what) > 0
    assert now("process_resident_memory_bytes", model=None) > 0


def test_evicted_cells_are_counted(watched: Server) -> None:
    watched.unload()  # a longer context would be kept
    for word in ("hello", " world", " time"):
        generate(watched, word * 40, num_ctx=64)  # the cache has room for one of them
    kept = 1 + 40 + 5  # the begin token, the prompt, and the answer but for the last token
    common = 1  # they begin with the same special token
    assert Samples(watched)("puna_cache_evicted_cells_total") == 2 * (kept - common)


def test_running_waiting_and_cancelled_requests_are_counted(watched: Server) -> None:
    body = {"model": "endless", "prompt": PROMPT, "stream": False, "options": LONG}
    wait_until(lambda: watched.running_requests() == [], "the end of earlier requests")
    before = Samples(watched)("puna_requests_total", outcome="cancelled")
    with watched.open_request("/api/generate", body):
        wait_until(lambda: [one["state"] for one in watched.running_requests()] == ["generating"], "tokens")
        with watched.open_request("/api/generate", body):
            wait_until(lambda: Samples(watched)("puna_requests_waiting", what="slot") == 1, "the second")
            assert Samples(watched)("puna_requests_running") == 1
            assert watched.requests() == (1, 1)
            (model,) = watched.http.get("/api/ps").json()["models"]
            assert model["tokens_per_second"] > 0

    def cancelled() -> float:
        return Samples(watched)("puna_requests_total", outcome="cancelled") - before

    wait_until(lambda: cancelled() == 2, "both to be counted")
    wait_until(lambda: Samples(watched)("puna_requests_running") == 0, "the end of the stream")


def test_refused_requests_are_counted_separately(watched: Server) -> None:
    before = Samples(watched)("puna_requests_total", outcome="refused")
    body = {"model": "endless", "prompt": "hello " * 200, "truncate": False, "options": {"num_ctx": 64}}
    assert watched.http.post("/api/generate", json=body).status_code == 400
    assert Samples(watched)("puna_requests_total", outcome="refused") == before + 1


def test_documentation_lists_every_metric(watched: Server) -> None:
    families = text_string_to_metric_families(watched.http.get("/metrics").text)
    exposed = {family.name for family in families if family.name.startswith("puna_")}
    tables = [line for line in DOCUMENTATION.read_text().splitlines() if line.startswith("| `puna_")]
    names = [name for line in tables for name in line.split("|")[1].split("`")[1::2]]
    documented = {name.removesuffix("_total") for name in names}
    assert documented == exposed


def test_openmetrics_format_is_used_on_request(watched: Server) -> None:
    generate(watched)
    response = watched.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in read_openmetrics(response.text)}
    assert {"puna_requests", "puna_inter_token_seconds", "puna_cache_cells"} <= names


def test_ps_describes_a_models_memory_and_activity(watched: Server) -> None:
    answer = generate(watched)
    (model,) = watched.http.get("/api/ps").json()["models"]
    assert model["context_length"] == 8192
    assert model["responding"] is True
    assert model["parallel"] == 1
    assert model["load_duration"] > 0
    memory = model["memory"]
    assert memory["weights"] + memory["cache_limit"] == model["size"]
    assert 0 < memory["cache"] <= memory["cache_limit"]
    assert memory["process"] > memory["weights"]
    assert model["tokens"]["generated"] >= 6
    assert model["tokens"]["prompt"] >= answer["prompt_eval_count"]
    assert model["tokens_per_second"] > 0
    assert watched.client.ps().models[0].context_length == 8192


# --- the log -------------------------------------------------------------------------------------


def logged(server: Server, request_id: str) -> list[dict[str, Any]]:
    """Return the log's lines about a request, which may appear a moment after the answer."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [line for line in lines if line.get("request_id") == request_id]


def request_line(server: Server, request_id: str) -> dict[str, Any]:
    def ended() -> list[dict[str, Any]]:
        return [line for line in logged(server, request_id) if line["logger"] == "puna.server.request"]

    wait_until(lambda: bool(ended()), "the request's line")
    (line,) = ended()
    return line


def test_log_has_one_line_per_request_with_its_id_tokens_and_times(watched: Server) -> None:
    watched.unload()
    body = {"model": "endless", "prompt": PROMPT, "options": {"temperature": 0, "num_predict": 6}}
    response = watched.http.post("/api/generate", json=body, headers={"X-Request-Id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    last = json.loads(response.text.splitlines()[-1])
    line = request_line(watched, "mine-1")
    expected = {
        "level": "INFO",
        "method": "POST",
        "path": "/api/generate",
        "status": 200,
        "model": "endless:latest",
        "outcome": "length",
        "prompt_tokens": last["prompt_eval_count"],
        "cached_tokens": last.get("cached", 0),
        "generated_tokens": 6,
    }
    assert {name: line[name] for name in expected} == expected
    assert 0 < line["load_s"] < line["first_token_s"] < line["total_s"]
    assert "error" not in line
    # The load is logged under the same id.
    assert any(entry["message"].startswith("loaded endless:latest") for entry in logged(watched, "mine-1"))


def test_openai_client_gets_the_request_id_used_in_the_log(watched: Server) -> None:
    client = openai.OpenAI(base_url=watched.url + "/v1/", api_key="unused", max_retries=0)
    made = client.completions.create(model="endless", prompt="once", max_tokens=2)
    assert made._request_id
    assert request_line(watched, made._request_id)["path"] == "/v1/completions"
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="nobody", prompt="once")
    assert caught.value.request_id
    line = request_line(watched, caught.value.request_id)
    assert (line["status"], line["model"]) == (404, "nobody")


def test_request_id_that_could_forge_the_log_is_replaced(watched: Server) -> None:
    for given in ("two words", "x" * 200, "caf\xe9"):
        response = watched.http.get("/api/tags", headers={"X-Request-Id": given.encode("latin-1")})
        made = response.headers["x-request-id"]
        assert len(made) == 32
        assert made.isalnum()
        assert request_line(watched, made)["path"] == "/api/tags"


def test_request_whose_client_disconnected_is_logged_as_499(watched: Server) -> None:
    body = {"model": "endless", "prompt": PROMPT, "stream": False, "options": LONG}
    with watched.open_request("/api/generate", body, request_id="left-1"):
        wait_until(lambda: any(one["id"] == "left-1" for one in watched.running_requests()), "the request")
    line = request_line(watched, "left-1")
    assert (line["status"], line["outcome"]) == (499, "cancelled")
