"""The bundled model's tool calls and objects, through popular clients: `make test-clients`.

tests/e2e/test_demo_tools.py tests it further, through the APIs' own clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients import outcomes
from tests.clients.clients import CLIENTS, Client
from tests.e2e.servers import Server, running

pytestmark = [pytest.mark.clients, pytest.mark.e2e, pytest.mark.slow, pytest.mark.samples]

PROGRAMS = (
    "with_ollama.py", "with_openai.py", "with_anthropic.py", "with_langchain.py", "with_llamaindex.py",
    "with_pydantic_ai.py", "with_instructor.py", "with_ai.mjs",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server whose `demo` always picks the likeliest token, even at OpenAI's temperature of 1."""
    with running(tmp_path_factory.mktemp("demo") / "models") as started:
        started.client.create(model="demo", from_="demo", parameters={"top_k": 1})
        yield started


@pytest.mark.parametrize(
    ("client", "column"),
    [
        pytest.param(client, column, id=f"{client.id} {column}")
        for client in CLIENTS
        if client.program in PROGRAMS
        for column in ("schema", "tools")
        if column not in client.without
    ],
)
def test_bundled_model_answers_the_client(server: Server, client: Client, column: str) -> None:
    if reason := outcomes.missing(client):
        pytest.skip(reason)
    answer = outcomes.outcome(client, server.url, asked="demo.json")[column]
    assert "failed" not in answer, answer["failed"]
    got = answer["got"]
    if column == "schema":
        assert got == {"name": "Anna", "age": 7}
    else:
        assert got["calls"] == [["get_weather", {"city": "Rome"}], ["get_weather", {"city": "Madrid"}]]
        assert got["answer"] == "It is sunny in Rome, 21 degrees. It is sunny in Madrid, 21 degrees."
