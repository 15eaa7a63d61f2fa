"""Haystack, with its generators for OpenAI or ollama-haystack."""

from typing import Any

from asked import ASKED, EMBEDDER, MODEL, URL, WAY, Trip, errors, get_weather, report
from haystack import Document
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool

WEATHER = Tool(**ASKED["tool"], function=get_weather)

if WAY == "ollama":
    from haystack_integrations.components.embedders.ollama import OllamaDocumentEmbedder
    from haystack_integrations.components.generators.ollama import OllamaChatGenerator

    def model(name: str = MODEL, **more: Any) -> Any:
        return OllamaChatGenerator(model=name, url=URL, **more)

    SCHEMA: dict[str, Any] = {"response_format": ASKED["schema"]}
    embedder: Any = OllamaDocumentEmbedder(model=EMBEDDER, url=URL, progress_bar=False)
else:
    from haystack.components.embedders import OpenAIDocumentEmbedder
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.utils import Secret

    KEY = Secret.from_token("any")

    def model(name: str = MODEL, **more: Any) -> Any:
        return OpenAIChatGenerator(model=name, api_base_url=f"{URL}/v1", api_key=KEY, max_retries=0, **more)

    SCHEMA = {"generation_kwargs": {"response_format": Trip}}
    embedder = OpenAIDocumentEmbedder(
        model=EMBEDDER, api_base_url=f"{URL}/v1", api_key=KEY, progress_bar=False
    )


def ask(generator: Any, messages: str | list[ChatMessage]) -> ChatMessage:
    asked = messages if isinstance(messages, list) else [ChatMessage.from_user(messages)]
    reply: ChatMessage = generator.run(messages=asked)["replies"][0]
    return reply


def stream() -> Any:
    pieces: list[str] = []
    ask(model(streaming_callback=lambda chunk: pieces.append(chunk.content)), ASKED["chat"])
    return pieces


def schema() -> Any:
    return Trip.model_validate_json(ask(model(**SCHEMA), ASKED["schema_question"]).text or "").model_dump()


def tools() -> Any:
    generator = model(tools=[WEATHER])
    messages = [ChatMessage.from_user(ASKED["tool_question"])]
    reply = ask(generator, messages)
    messages.append(reply)
    messages += [
        ChatMessage.from_tool(WEATHER.invoke(**call.arguments), origin=call) for call in reply.tool_calls
    ]
    calls = [[call.tool_name, call.arguments] for call in reply.tool_calls]
    return {"calls": calls, "answer": ask(generator, messages).text}


def embeddings() -> Any:
    documents = [Document(content=text) for text in ASKED["texts"]]
    return [document.embedding for document in embedder.run(documents=documents)["documents"]]


report(
    chat=lambda: ask(model(), ASKED["chat"]).text,
    stream=stream,
    schema=schema,
    tools=tools,
    embeddings=embeddings,
    errors=lambda: errors(lambda name: ask(model(name), "Hello")),
)
