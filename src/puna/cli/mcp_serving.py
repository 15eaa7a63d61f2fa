"""`puna mcp`: the models of a running server as tools of an MCP server over stdio.

Requests go to the server at `PUNA_HOST`, as those of all other commands; if none runs, one is started, so
models stay loaded between calls and are shared with other clients.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from puna import __version__
from puna.cli.attachments import DEFAULT_PROMPT
from puna.cli.client import Client
from puna.cli.server_process import connect, ensure_server
from puna.config import path_of
from puna.errors import PunaError

_MAX_IMAGE_BYTES: Final = 20 << 20

ModelName = Annotated[str, Field(description="The name of a model, as list_models gives it")]
System = Annotated[str | None, Field(description="A system message instead of the model's own")]
Tokens = Annotated[int | None, Field(description="The maximum number of tokens to generate", ge=1)]
Temperature = Annotated[float | None, Field(description="0 always picks the most likely token", ge=0, le=2)]
Schema = Annotated[
    dict[str, Any] | None, Field(description="A JSON schema that the answer is made to follow")
]

_INSTRUCTIONS: Final = (
    "Language models that run on this machine. list_models gives their names and capabilities: "
    "`completion` for generate and chat, `vision` for describe_image, `embedding` for embed and rerank."
)


def serve_mcp() -> None:
    """Serve on standard input and output until the input ends. Raises `ConnectionFailedError`."""
    connect().close()
    anyio.run(_server().run_stdio_async)


def _server() -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer(
        "puna", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    for tool in (generate, chat, embed, rerank, describe_image, list_models):
        server.add_tool(tool)
    return server


async def generate(
    model: ModelName,
    prompt: str,
    ctx: Context[Any],
    system: System = None,
    max_tokens: Tokens = None,
    temperature: Temperature = None,
    schema: Schema = None,
) -> str:
    """Let a model answer a prompt."""
    body: dict[str, Any] = {"model": model, "prompt": prompt}
    if system is not None:
        body["system"] = system
    return await _answer(ctx, "/api/generate", body, max_tokens, temperature, schema)


async def chat(
    model: ModelName,
    messages: Annotated[
        list[dict[str, str]], Field(description='[{"role": "user", "content": "Hi"}, ...]', min_length=1)
    ],
    ctx: Context[Any],
    max_tokens: Tokens = None,
    temperature: Temperature = None,
    schema: Schema = None,
) -> str:
    """Let a model continue a conversation."""
    body = {"model": model, "messages": messages}
    return await _answer(ctx, "/api/chat", body, max_tokens, temperature, schema)


async def describe_image(
    model: ModelName,
    ctx: Context[Any],
    path: Annotated[str | None, Field(description="The path of an image file on this machine")] = None,
    data: Annotated[str | None, Field(description="The image file as base64, instead of a path")] = None,
    question: Annotated[str, Field(description="What to say about the picture")] = DEFAULT_PROMPT,
    max_tokens: Tokens = None,
    temperature: Temperature = None,
) -> str:
    """Let a model that sees describe a picture, or answer a question about it."""
    if (path is None) == (data is None):
        raise ToolError("give either path or data")
    image = _read_image(path) if path is not None else data
    body = {"model": model, "prompt": question, "images": [image]}
    return await _answer(ctx, "/api/generate", body, max_tokens, temperature, None)


async def embed(
    model: ModelName,
    texts: Annotated[list[str], Field(min_length=1)],
    ctx: Context[Any],
    dimensions: Annotated[int | None, Field(description="Return only the first values", ge=1)] = None,
) -> dict[str, list[list[float]]]:
    """Return the embedding vector of each text."""
    body: dict[str, Any] = {"model": model, "input": texts}
    if dimensions is not None:
        body["dimensions"] = dimensions
    reply = await _request(ctx, lambda client: [client.post("/api/embed", body)])
    return {"embeddings": reply["embeddings"]}


async def rerank(
    model: ModelName,
    query: str,
    documents: Annotated[list[str], Field(min_length=1)],
    ctx: Context[Any],
    top_n: Annotated[int | None, Field(description="Return only the best documents", ge=1)] = None,
) -> dict[str, list[dict[str, float]]]:
    """Rank documents by their relevance to a query: {"index", "relevance_score"}, the best first."""
    body: dict[str, Any] = {"model": model, "query": query, "documents": documents}
    if top_n is not None:
        body["top_n"] = top_n
    reply = await _request(ctx, lambda client: [client.post("/v1/rerank", body)])
    ranked = [{name: each[name] for name in ("index", "relevance_score")} for each in reply["results"]]
    return {"results": ranked}


async def list_models(ctx: Context[Any]) -> dict[str, list[dict[str, Any]]]:
    """List the models on this machine, with their sizes and capabilities."""
    reply = await _request(ctx, lambda client: [_with_capabilities(client, client.get("/api/tags"))])
    return {"models": reply["models"]}


def _with_capabilities(client: Client, tags: Mapping[str, Any]) -> dict[str, Any]:
    models = []
    for model in tags.get("models") or ():
        shown = client.post("/api/show", {"model": model["name"]})
        models.append(
            {
                "name": model["name"],
                "size_bytes": model.get("size"),
                "capabilities": list(shown.get("capabilities") or ()),
            }
        )
    return {"models": models}


async def _answer(
    ctx: Context[Any],
    path: str,
    body: dict[str, Any],
    max_tokens: int | None,
    temperature: float | None,
    schema: dict[str, Any] | None,
) -> str:
    """Return the text of an answer, with progress while the model loads, reads and writes."""
    options = {"num_predict": max_tokens, "temperature": temperature}
    body = body | {"options": {name: value for name, value in options.items() if value is not None}}
    if schema is not None:
        body["format"] = schema
    texts: list[str] = []

    def items(client: Client) -> Iterable[dict[str, Any]]:
        for item in client.stream(path, body | {"return_progress": True}):
            texts.append((item.get("message") or {}).get("content") or item.get("response") or "")
            yield item

    await _request(ctx, items, max_tokens)
    return "".join(texts)


async def _request(
    ctx: Context[Any],
    request: Callable[[Client], Iterable[dict[str, Any]]],
    total: int | None = None,
) -> dict[str, Any]:
    """Return the last item of a request, which a cancelled call ends. Raises `ToolError`."""
    with Client() as client:

        def work() -> dict[str, Any]:
            ensure_server(client)
            last: dict[str, Any] = {}
            for number, item in enumerate(request(client), 1):
                last = item
                anyio.from_thread.run(ctx.report_progress, number, total, _activity(item))
            return last

        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except PunaError as error:
            raise ToolError(str(error)) from None
        finally:
            client.interrupt()  # a cancelled call's request; no other is left


def _activity(item: Mapping[str, Any]) -> str | None:
    """Return what a model does, for the progress of a call."""
    if progress := item.get("load_progress"):
        return f"loading the model: {_share(progress.get('completed'), progress.get('total'))}"
    if progress := item.get("prompt_progress"):
        return f"reading the prompt: {_share(progress.get('processed'), progress.get('total'))}"
    return None


def _share(done: float | None, total: float | None) -> str:
    return f"{(done or 0) / total:.0%}" if total else "..."


def _read_image(path: str) -> str:
    try:
        with path_of(path).open("rb") as file:
            image = file.read(_MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise ToolError(f"the image {path} cannot be read: {error.strerror or error}") from None
    if len(image) > _MAX_IMAGE_BYTES:
        raise ToolError(f"the image {path} is larger than {_MAX_IMAGE_BYTES >> 20} MB")
    return base64.b64encode(image).decode()
