"""Requests that schemathesis generates from `/openapi.json`: no route may answer any of them with a defect.

`make test-schemathesis` installs it and runs this; `make test` skips it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.e2e.servers import Server, add_model, running
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

schemathesis = pytest.importorskip(
    "schemathesis", reason="schemathesis is not installed: run make test-schemathesis"
)
pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.samples]

EXAMPLES = int(os.environ.get("EXAMPLES", "50"))

#: A valid request per route, which generated fields are put into: otherwise only refusals would be tested.
MESSAGES = [{"role": "user", "content": "hello"}]
VALID: dict[str, dict[str, Any]] = {
    "/api/generate": {"model": "tiny", "prompt": "hello", "options": {"num_predict": 3}},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "options": {"num_predict": 3}},
    "/api/embed": {"model": "tiny", "input": "hello"},
    "/api/embeddings": {"model": "tiny", "prompt": "hello"},
    "/api/rerank": {"model": "tiny", "query": "a", "documents": ["b"]},
    "/api/show": {"model": "tiny"},
    "/api/create": {"model": "made", "from": "tiny"},
    "/api/copy": {"source": "tiny", "destination": "copy"},
    "/api/delete": {"model": "copy"},
    "/api/cancel": {"id": "none"},
    "/api/puna/finish_thinking": {"id": "none"},
    "/v1/completions": {"model": "tiny", "prompt": "hello", "max_tokens": 3},
    "/v1/chat/completions": {"model": "tiny", "messages": MESSAGES, "max_tokens": 3},
    "/v1/embeddings": {"model": "tiny", "input": "hello"},
    "/v1/rerank": {"model": "tiny", "query": "a", "documents": ["b"]},
    "/v1/responses": {"model": "tiny", "input": "hello", "max_output_tokens": 3},
    "/v1/responses/input_tokens": {"model": "tiny", "input": "hello"},
    "/v1/conversations": {"items": MESSAGES},
    "/v1/messages/batches": {
        "requests": [{"custom_id": "a", "params": {"model": "tiny", "messages": MESSAGES, "max_tokens": 3}}]
    },
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 3},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": MESSAGES},
    "/completion": {"model": "tiny", "prompt": "hello", "n_predict": 3},
    "/completions": {"model": "tiny", "prompt": "hello", "n_predict": 3},
    "/infill": {"model": "tiny", "input_prefix": "a", "input_suffix": "b", "n_predict": 3},
    "/tokenize": {"model": "tiny", "content": "hello"},
    "/detokenize": {"model": "tiny", "tokens": [1, 2]},
    "/apply-template": {"model": "tiny", "messages": MESSAGES},
    "/score": {"model": "tiny", "text_1": "a", "text_2": "b"},
    "/v1/score": {"model": "tiny", "text_1": "a", "text_2": "b"},
    "/pooling": {"model": "tiny", "input": "hello"},
    "/embedding": {"model": "tiny", "content": "hello"},
    "/embeddings": {"model": "tiny", "content": "hello"},
    "/rerank": {"model": "tiny", "query": "a", "documents": ["b"]},
    "/reranking": {"model": "tiny", "query": "a", "documents": ["b"]},
    "/v1/reranking": {"model": "tiny", "query": "a", "documents": ["b"]},
}
#: Fields that bound an answer are not changed, so that no test waits for a thousand tokens.
BOUNDS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "options", "n", "n_predict", "n_cmpl"}
#: Routes that contact other machines, whose failures are a 500, as with Ollama.
ELSEWHERE = {"/api/pull", "/api/push"}
#: The only route where a text that cannot be embedded is a 500.
OLD = "/api/embeddings"


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("schemathesis")
    path = tiny_llama_gguf(folder / "tiny.gguf", TinyLlama(context=512))
    with running(folder / "models") as server:
        add_model(server, "tiny", path)
        yield server


def test_no_generated_request_reveals_a_defect(tiny_server: Server) -> None:
    schema = schemathesis.openapi.from_url(tiny_server.url + "/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 30
    seen = {path: set[int]() for path in VALID}
    for operation in operations:
        if operation.path not in ELSEWHERE:
            _attack(tiny_server, operation, seen.setdefault(operation.path, set()))
    succeeded = {path for path, statuses in seen.items() if statuses & {200, 201}}
    assert succeeded >= VALID.keys() - {
        "/api/cancel",
        "/api/puna/finish_thinking",
        "/api/rerank",
        "/v1/rerank",
    }, "a route accepted no request"
    assert "Traceback" not in tiny_server.log.read_text()


def _attack(server: Server, operation: Any, seen: set[int]) -> None:
    valid = VALID.get(operation.path, {})

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), data=st.data())
    def attack(case: Any, data: st.DataObject) -> None:
        if valid and isinstance(case.body, dict):
            invented = sorted(case.body.keys() - BOUNDS)
            kept = data.draw(st.lists(st.sampled_from(invented), max_size=3)) if invented else []
            case.body = valid | {name: case.body[name] for name in kept}
        reply = case.call(timeout=120)
        seen.add(reply.status_code)
        if operation.path == OLD and "input length" in reply.text:
            return
        assert reply.status_code < 500, (operation.path, case.body, reply.text)
        assert "internal error" not in reply.text, (operation.path, case.body, reply.text)

    attack()
