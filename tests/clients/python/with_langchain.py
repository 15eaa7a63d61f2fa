"""LangChain, with langchain-ollama or langchain-openai."""

from typing import Any

from asked import ASKED, EMBEDDER, MODEL, URL, WAY, Trip, errors, get_weather, report
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

if WAY == "ollama":
    from langchain_ollama import ChatOllama, OllamaEmbeddings

    def model(name: str = MODEL) -> Any:
        return ChatOllama(model=name, base_url=URL)

    embedder: Any = OllamaEmbeddings(model=EMBEDDER, base_url=URL)
else:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    def model(name: str = MODEL) -> Any:
        return ChatOpenAI(model=name, base_url=f"{URL}/v1", api_key="any")

    # Otherwise it sends token ids of OpenAI's tokenizer.
    embedder = OpenAIEmbeddings(
        model=EMBEDDER, base_url=f"{URL}/v1", api_key="any", check_embedding_ctx_length=False
    )


def tools() -> Any:
    weather = tool(get_weather)
    agent = model().bind_tools([weather])
    messages: list[Any] = [HumanMessage(ASKED["tool_question"])]
    answer = agent.invoke(messages)
    messages += [answer, *(weather.invoke(call) for call in answer.tool_calls)]
    calls = [[call["name"], call["args"]] for call in answer.tool_calls]
    return {"calls": calls, "answer": agent.invoke(messages).content}


report(
    chat=lambda: model().invoke(ASKED["chat"]).content,
    stream=lambda: [chunk.content for chunk in model().stream(ASKED["chat"])],
    schema=lambda: model().with_structured_output(Trip).invoke(ASKED["schema_question"]).model_dump(),
    tools=tools,
    embeddings=lambda: embedder.embed_documents(ASKED["texts"]),
    errors=lambda: errors(lambda name: model(name).invoke("Hello")),
)
