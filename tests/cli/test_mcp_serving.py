"""`puna mcp`: the models as tools of an MCP server, driven by the official client."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from PIL import Image

from puna.cli.client import Client as HTTPClient
from puna.hosts import parse_host
from tests.cli.shell import Shell
from tests.library.test_tools import ANSWER, TEMPLATE
from tests.scripted import randomly_cut, trigger, write_scripted
from tests.tiny.bert import tiny_bert_gguf
from tests.tiny.llama import tiny_llama_gguf
from tests.tiny.rerankers import tiny_bge, tiny_reranker_gguf
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def served(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    folder = tmp_path_factory.mktemp("served")
    models = {
        "says": write_scripted(folder / "says.gguf", randomly_cut(["Hello.", ANSWER]), template=TEMPLATE),
        "bert": tiny_bert_gguf(folder / "bert.gguf"),
        "reranker": tiny_reranker_gguf(folder / "reranker.gguf", tiny_bge()),
        "endless": tiny_llama_gguf(folder / "endless.gguf", endless=True),
    }
    for name, path in models.items():
        shell.out("create", name, "-f", "-", stdin=f"FROM {path}")
    return shell


@asynccontextmanager
async def client_of(shell: Shell, **settings: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "puna", "mcp"],
        env=shell.env | {"PYTHONPATH": os.pathsep.join(sys.path)} | settings,
    )
    async with Client(parameters) as client:
        yield client


async def called(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    text = "".join(getattr(block, "text", "") for block in result.content)
    assert not result.is_error, text
    return text


def test_models_generate_chat_embed_and_rank(served: Shell) -> None:
    async def use() -> None:
        async with client_of(served) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["generate", "chat", "embed", "rerank", "describe_image", "list_models"]
            assert all(tool.description for tool in tools.values())
            assert "ctx" not in tools["chat"].input_schema["properties"]

            assert await called(client, "generate", model="says", prompt=trigger(1), temperature=0) == ANSWER
            messages = [{"role": "user", "content": trigger(1)}]
            assert await called(client, "chat", model="says", messages=messages, temperature=0) == ANSWER
            cut = await called(
                client, "generate", model="says", prompt=trigger(1), temperature=0, max_tokens=1
            )
            assert ANSWER.startswith(cut)
            assert cut != ANSWER
            found = json.loads(await called(client, "embed", model="bert", texts=["the cat", "the dog"]))
            assert len(found["embeddings"]) == 2
            ranked = await called(
                client, "rerank", model="reranker", query="a", documents=["a", "b"], top_n=1
            )
            assert set(json.loads(ranked)["results"][0]) == {"index", "relevance_score"}
            listed = json.loads(await called(client, "list_models"))["models"]
            capabilities = {model["name"]: model["capabilities"] for model in listed}
            assert "completion" in capabilities["says:latest"]
            assert "embedding" in capabilities["bert:latest"]
            assert "vision" in capabilities["demo-vision:latest"]

    asyncio.run(use())


def test_pictures_are_described(served: Shell, tmp_path: Path) -> None:
    written = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(written, "PNG")
    (tmp_path / "white.png").write_bytes(written.getvalue())

    async def use() -> None:
        async with client_of(served) as client:
            named = await called(
                client, "describe_image", model="demo-vision", path=str(tmp_path / "white.png"), max_tokens=20
            )
            data = base64.b64encode(written.getvalue()).decode()
            assert named == await called(
                client, "describe_image", model="demo-vision", data=data, max_tokens=20
            )
            assert named
            both = await client.call_tool("describe_image", {"model": "demo-vision"})
            assert "give either path or data" in both.content[0].text  # type: ignore[union-attr]
            missing = await client.call_tool("describe_image", {"model": "demo-vision", "path": "/no/such"})
            assert "/no/such cannot be read" in missing.content[0].text  # type: ignore[union-attr]

    asyncio.run(use())


def test_errors_say_what_was_wrong(served: Shell) -> None:
    calls: list[tuple[dict[str, Any], str]] = [
        ({"model": "nosuch", "prompt": "a"}, "model 'nosuch' not found"),
        ({"model": "bert", "prompt": "a"}, "does not support"),
        ({"model": "says", "prompt": "a", "temperature": 9}, "temperature"),
        ({"model": "says"}, "prompt"),
        ({"model": "says", "prompt": "a", "schema": {"type": 7}}, "type"),
    ]

    async def use() -> list[Any]:
        async with client_of(served) as client:
            return [await client.call_tool("generate", arguments) for arguments, _ in calls]

    for result, (_, said) in zip(asyncio.run(use()), calls, strict=True):
        assert result.is_error
        assert said in result.content[0].text


def test_progress_is_reported_and_a_cancelled_call_ends_at_the_server(served: Shell) -> None:
    def running() -> int:
        with HTTPClient(parse_host(served.env["PUNA_HOST"])) as client:
            return len(client.get("/api/ps")["requests"])

    async def use() -> None:
        steps: list[tuple[float, float | None]] = []
        begun = asyncio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            steps.append((progress, total))
            if progress >= 5:
                begun.set()

        async with client_of(served) as client:
            arguments = {"model": "endless", "prompt": "hello", "max_tokens": 100_000, "temperature": 0}
            call = asyncio.ensure_future(
                client.call_tool("generate", arguments, progress_callback=on_progress)
            )
            await asyncio.wait_for(begun.wait(), 60)
            assert await asyncio.to_thread(running) == 1
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.to_thread(wait_until, lambda: running() == 0, "the cancelled request to end")
            assert await called(client, "generate", model="says", prompt=trigger(1), temperature=0) == ANSWER
        assert [step for step, _ in steps] == sorted(step for step, _ in steps)
        assert steps[0][1] == 100_000

    asyncio.run(use())


def test_a_server_that_cannot_be_reached_ends_the_program(served: Shell) -> None:
    done = served.run("mcp", PUNA_HOST="http://192.0.2.1:9")
    assert done.returncode == 1
    assert "could not connect to the server" in done.stderr
    assert done.stdout == ""
