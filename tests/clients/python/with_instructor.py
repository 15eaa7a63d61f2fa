"""instructor around OpenAI's client, with tool calls or a response format, and around Anthropic's."""

from typing import Any

import anthropic
import instructor
import openai
from asked import ASKED, MODEL, URL, WAY, Trip, errors, report

MODES = {
    "tools": instructor.Mode.TOOLS,
    "json_schema": instructor.Mode.JSON_SCHEMA,
    "anthropic": instructor.Mode.ANTHROPIC_TOOLS,
}
QUESTION = ASKED["schema_question" if WAY == "json_schema" else "schema_as_tool_question"]
MORE = {"max_tokens": 400} if WAY == "anthropic" else {}
client: Any
if WAY == "anthropic":
    client = instructor.from_anthropic(
        anthropic.Anthropic(base_url=URL, api_key="any", max_retries=0), mode=MODES[WAY]
    )
else:
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0), mode=MODES[WAY]
    )


def ask(text: str, kind: Any, model: str = MODEL) -> Any:
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(
        model=model, messages=messages, response_model=kind, max_retries=0, **MORE
    )


def chat() -> Any:
    answer = ask(ASKED["chat"], None)
    return answer.content[0].text if WAY == "anthropic" else answer.choices[0].message.content


def stream() -> Any:
    messages = [{"role": "user", "content": QUESTION}]
    parts = client.chat.completions.create_partial(
        model=MODEL, messages=messages, response_model=Trip, max_retries=0, **MORE
    )
    return [part.model_dump() for part in parts]


report(
    chat=chat,
    stream=stream,
    schema=lambda: ask(QUESTION, Trip).model_dump(),
    errors=lambda: errors(lambda model: ask("Hello", Trip, model)),
)
