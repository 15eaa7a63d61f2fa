"""LlamaIndex, with its classes for Ollama or for OpenAI-compatible servers."""

from typing import Any

from asked import ASKED, EMBEDDER, MODEL, URL, WAY, Trip, errors, get_weather, report
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool

if WAY == "ollama":
    from llama_index.embeddings.ollama import OllamaEmbedding
    from llama_index.llms.ollama import Ollama

    def model(name: str = MODEL) -> Any:
        return Ollama(model=name, base_url=URL, context_window=8192)

    embedder: Any = OllamaEmbedding(model_name=EMBEDDER, base_url=URL)
else:
    from llama_index.embeddings.openai import OpenAIEmbedding
    from llama_index.llms.openai_like import OpenAILike

    def model(name: str = MODEL) -> Any:
        return OpenAILike(
            model=name,
            api_base=f"{URL}/v1",
            api_key="any",
            context_window=8192,
            is_chat_model=True,
            is_function_calling_model=True,
            max_retries=0,
        )

    embedder = OpenAIEmbedding(model_name=EMBEDDER, api_base=f"{URL}/v1", api_key="any")


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


def schema() -> Any:
    answer = model().as_structured_llm(Trip).chat(user(ASKED["schema_question"]))
    return answer.raw.model_dump()


def tools() -> Any:
    weather, messages = FunctionTool.from_defaults(get_weather), user(ASKED["tool_question"])
    answer = model().chat_with_tools([weather], chat_history=messages, allow_parallel_tool_calls=True)
    messages.append(answer.message)
    calls = []
    for call in model().get_tool_calls_from_response(answer):
        calls.append([call.tool_name, call.tool_kwargs])
        messages.append(
            ChatMessage(
                role="tool",
                content=str(weather(**call.tool_kwargs)),
                additional_kwargs={"tool_call_id": call.tool_id, "name": call.tool_name},
            )
        )
    done = model().chat_with_tools([weather], chat_history=messages)
    return {"calls": calls, "answer": done.message.content}


report(
    chat=lambda: model().chat(user(ASKED["chat"])).message.content,
    stream=lambda: [part.delta for part in model().stream_chat(user(ASKED["chat"]))],
    schema=schema,
    tools=tools,
    embeddings=lambda: embedder.get_text_embedding_batch(ASKED["texts"]),
    errors=lambda: errors(lambda name: model(name).chat(user("Hello"))),
)
