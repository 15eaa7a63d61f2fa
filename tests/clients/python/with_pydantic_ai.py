"""pydantic-ai, with its models for OpenAI's chat completions and responses, Ollama, and Anthropic."""

import asyncio
from typing import Any, Literal

from asked import ASKED, EMBEDDER, MODEL, URL, WAY, Trip, errors, get_weather, report
from pydantic_ai import Agent, NativeOutput, Tool
from pydantic_ai.messages import ToolCallPart


def model(name: str = MODEL) -> Any:
    if WAY == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = AsyncAnthropic(base_url=URL, api_key="any", max_retries=0)
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))
    if WAY == "ollama":
        from pydantic_ai.models.ollama import OllamaModel
        from pydantic_ai.providers.ollama import OllamaProvider

        return OllamaModel(name, provider=OllamaProvider(base_url=f"{URL}/v1"))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if WAY == "responses" else OpenAIChatModel
    return kind(name, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="any"))


def strictly(city: Literal["Lima"], days: Literal[2]) -> str:
    """The weather of the one city there is."""
    return get_weather(city, days)


# With OpenAI's models it requires arguments to match the schema, which leaves a scripted model no choice of
# calls.
FORCED = WAY in ("openai", "responses") and MODEL != "demo"
TOOL = Tool(strictly, name="get_weather") if FORCED else Tool(get_weather)


def stream() -> Any:
    async def pieces() -> list[str]:
        async with Agent(model()).run_stream(ASKED["chat"]) as answer:
            return [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]

    return asyncio.run(pieces())


def schema() -> Any:
    """Request the schema as a forced tool, and with OpenAI's APIs also as the response format."""
    called = Agent(model(), output_type=Trip).run_sync(ASKED["schema_as_tool_question"]).output
    if WAY != "anthropic":
        native = Agent(model(), output_type=NativeOutput(Trip)).run_sync(ASKED["schema_question"])
        assert native.output == called
    return called.model_dump()


def tools() -> Any:
    answer = Agent(model(), tools=[TOOL]).run_sync(ASKED["tool_question"])
    parts = [part for message in answer.all_messages() for part in message.parts]
    calls = [[part.tool_name, part.args_as_dict()] for part in parts if isinstance(part, ToolCallPart)]
    return {"calls": calls, "answer": answer.output}


def embeddings() -> Any:
    from pydantic_ai import Embedder
    from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="any")
    embedder = Embedder(OpenAIEmbeddingModel(EMBEDDER, provider=provider))
    return [list(vector) for vector in embedder.embed_documents_sync(ASKED["texts"]).embeddings]


columns = {
    "chat": lambda: Agent(model()).run_sync(ASKED["chat"]).output,
    "stream": stream,
    "schema": schema,
    "tools": tools,
    "errors": lambda: errors(lambda name: Agent(model(name)).run_sync("Hello")),
}
report(**columns, **({} if WAY == "anthropic" else {"embeddings": embeddings}))
