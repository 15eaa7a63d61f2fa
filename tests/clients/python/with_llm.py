"""llm, with an OpenAI-compatible server in its settings or with the plugin llm-ollama."""

import os
import tempfile
from pathlib import Path
from typing import Any

from asked import ASKED, EMBEDDER, MODEL, UNKNOWN, URL, WAY, Trip, errors, get_weather, report

folder = Path(tempfile.mkdtemp())
os.environ |= {"LLM_USER_PATH": str(folder), "OLLAMA_HOST": URL}
settings = "".join(
    f"- model_id: puna-{name}\n  model_name: {name}\n  api_base: {URL}/v1\n"
    "  supports_schema: true\n  supports_tools: true\n"
    for name in (MODEL, EMBEDDER, UNKNOWN)
)
(folder / "extra-openai-models.yaml").write_text(settings)

import llm  # noqa: E402 - it reads its settings when it is imported


def named(name: str, models: Any) -> Any:
    """Return the model `name` from those the plugin lists; newer plugins add a prefix."""
    return next(one for one in models if one.model_id.removeprefix("ollama/") == f"{name}:latest")


def model(name: str = MODEL) -> Any:
    if WAY == "ollama":
        return named(name, llm.get_models())
    return llm.get_model(f"puna-{name}")


def prompt(text: str, name: str = MODEL, **more: Any) -> Any:
    return model(name).prompt(text, **({} if WAY == "ollama" else {"key": "any"}), **more)


def schema() -> Any:
    answer = prompt(ASKED["schema_question"], schema=Trip, stream=False)
    return Trip.model_validate_json(answer.text()).model_dump()


def tools() -> Any:
    calls: list[Any] = []
    chain = model().chain(
        ASKED["tool_question"],
        tools=[get_weather],
        after_call=lambda tool, call, result: calls.append([call.name, call.arguments]),
        **({} if WAY == "ollama" else {"key": "any"}),
    )
    answers = [response.text() for response in chain.responses()]
    return {"calls": calls, "answer": answers[-1]}


columns = {
    "chat": lambda: prompt(ASKED["chat"], stream=False).text(),
    "stream": lambda: list(prompt(ASKED["chat"], stream=True)),
    "schema": schema,
    "tools": tools,
}
if WAY == "openai":
    columns["errors"] = lambda: errors(lambda name: prompt("Hello", name, stream=False).text())
else:  # the plugin knows only models the server lists
    columns["embeddings"] = lambda: list(
        named(EMBEDDER, llm.get_embedding_models()).embed_multi(ASKED["texts"])
    )
report(**columns)
