"""OpenAI's own client, with chat completions or responses."""

import json
from typing import Any

import openai
from asked import ASKED, EMBEDDER, MODEL, URL, WAY, Trip, errors, get_weather, report

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="any")
FUNCTION = {"type": "function", "function": ASKED["tool"]}
FLAT: dict[str, Any] = {"type": "function", "strict": False, **ASKED["tool"]}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


class Chats:
    """Chat completions, the way `chat`."""

    def chat(self) -> Any:
        answer = client.chat.completions.create(model=MODEL, messages=user(ASKED["chat"]))
        return answer.choices[0].message.content

    def stream(self) -> Any:
        chunks = client.chat.completions.create(model=MODEL, messages=user(ASKED["chat"]), stream=True)
        return [chunk.choices[0].delta.content for chunk in chunks]

    def schema(self) -> Any:
        answer = client.chat.completions.parse(
            model=MODEL, messages=user(ASKED["schema_question"]), response_format=Trip
        )
        return answer.choices[0].message.parsed.model_dump()

    def tools(self) -> Any:
        messages = user(ASKED["tool_question"])
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[FUNCTION])
        messages.append(answer.choices[0].message)
        calls = []
        for call in answer.choices[0].message.tool_calls or []:
            arguments = json.loads(call.function.arguments)
            calls.append([call.function.name, arguments])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": get_weather(**arguments)})
        done = client.chat.completions.create(model=MODEL, messages=messages, tools=[FUNCTION])
        return {"calls": calls, "answer": done.choices[0].message.content}

    def ask(self, model: str) -> Any:
        return client.chat.completions.create(model=model, messages=user("Hello"))


class Responses:
    """Responses, the way `responses`."""

    def chat(self) -> Any:
        return client.responses.create(model=MODEL, input=ASKED["chat"]).output_text

    def stream(self) -> Any:
        with client.responses.stream(model=MODEL, input=ASKED["chat"]) as events:
            return [event.delta for event in events if event.type == "response.output_text.delta"]

    def schema(self) -> Any:
        answer = client.responses.parse(model=MODEL, input=ASKED["schema_question"], text_format=Trip)
        return answer.output_parsed.model_dump()

    def tools(self) -> Any:
        answer = client.responses.create(model=MODEL, input=ASKED["tool_question"], tools=[FLAT])
        calls, results = [], []
        for item in answer.output:
            if item.type == "function_call":
                arguments = json.loads(item.arguments)
                calls.append([item.name, arguments])
                output = get_weather(**arguments)
                results.append({"type": "function_call_output", "call_id": item.call_id, "output": output})
        done = client.responses.create(
            model=MODEL, input=results, tools=[FLAT], previous_response_id=answer.id
        )
        return {"calls": calls, "answer": done.output_text}

    def ask(self, model: str) -> Any:
        return client.responses.create(model=model, input="Hello")


def embeddings() -> Any:
    return [item.embedding for item in client.embeddings.create(model=EMBEDDER, input=ASKED["texts"]).data]


way = Responses() if WAY == "responses" else Chats()
report(
    chat=way.chat,
    stream=way.stream,
    schema=way.schema,
    tools=way.tools,
    embeddings=embeddings,
    errors=lambda: errors(way.ask),
)
