"""Answers in a format, through a real server with the real clients, from a model that says anything."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jsonschema
import ollama
import openai
import pytest
from pydantic import BaseModel

from tests import commands
from tests.e2e.servers import Server, environment
from tests.grammar.schemas import random_schema

pytestmark = pytest.mark.e2e

HOT = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "num_predict": 100}


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    age: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def gpt(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1/", api_key="unused", max_retries=0, timeout=120)


def ask(server: Server, seed: int, **fields: Any) -> Any:
    message = {"role": "user", "content": "hello"}
    return server.client.chat("tiny", [message], options=HOT | {"seed": seed}, **fields)


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_answer_follows_a_schema(server: Server, stream: bool) -> None:
    schema = Pet.model_json_schema()
    if stream:
        parts = list(ask(server, 1, format=schema, stream=True))
        text, last = "".join(part.message.content for part in parts), parts[-1]
        assert sum(bool(part.message.content) for part in parts) > 3
    else:
        last = ask(server, 1, format=schema)
        text = last.message.content
    assert last.done_reason == "stop"
    Pet.model_validate_json(text)


def test_ollama_answer_is_json(server: Server) -> None:
    found = [
        server.client.generate("tiny", "hello", format="json", options=HOT | {"seed": seed})
        for seed in range(6)
    ]
    ended = [answer.response for answer in found if answer.done_reason == "stop"]
    assert all(isinstance(json.loads(text), dict) for text in ended)
    assert ended
    assert all(answer.eval_count == 100 for answer in found if answer.done_reason == "length")


def test_openai_parses_into_a_pydantic_model(gpt: openai.OpenAI) -> None:
    answer = gpt.chat.completions.parse(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        response_format=Pet,
        temperature=1.5,
        n=2,
        seed=3,
        max_tokens=100,
    )
    assert [type(choice.message.parsed) for choice in answer.choices] == [Pet, Pet]
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[ab]{2}[0-9]"}, "[ab]{2}[0-9]"),
        ({"guided_choice": ["red", "green"]}, "red|green"),
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"guided_grammar": 'start: "<" /[a-z]{2}/ ">"'}, "<[a-z]{2}>"),
        ({"grammar": 'root ::= "yes" | "no" [!]'}, "yes|no!"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_answers_follow_regexes_choices_and_grammars(
    gpt: openai.OpenAI, fields: dict[str, Any], pattern: str
) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    chat = gpt.chat.completions.create(
        model="tiny", messages=messages, seed=1, temperature=1.5, max_tokens=50, extra_body=fields
    )
    text = gpt.completions.create(
        model="tiny", prompt="hello", seed=2, temperature=1.5, max_tokens=50, extra_body=fields
    )
    assert re.fullmatch(pattern, chat.choices[0].message.content or "")
    assert re.fullmatch(pattern, text.choices[0].text)


def test_eight_concurrent_streams_follow_their_own_schemas(server: Server) -> None:
    schemas = [random_schema(random.Random(100 + number)) for number in range(8)]

    def answer(number: int) -> tuple[str, str]:
        schema = schemas[number]
        # Ollama's client accepts only objects.
        wrapped = {"type": "object", "properties": {"it": schema}, "required": ["it"]}
        parts = list(ask(server, number, format=wrapped | {"additionalProperties": False}, stream=True))
        return "".join(part.message.content for part in parts), parts[-1].done_reason

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(answer, range(8)))
    assert sum(reason == "stop" for _, reason in found) >= 3
    for (text, reason), schema in zip(found, schemas, strict=True):
        if reason == "stop":
            jsonschema.validate(json.loads(text)["it"], schema)


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, 'keyword "not" at #/properties/a'),
        ({"$ref": "#"}, "leads to itself without end"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "points to '#/$defs/none'"),
        ({"type": "string", "pattern": "("}, "the pattern at #/pattern cannot be used"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_unusable_schema_is_an_error_of_the_request(
    server: Server, format: dict[str, Any], message: str, stream: bool
) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        list(ask(server, 1, format=format, stream=stream))
    assert caught.value.status_code == 400
    assert message in caught.value.error


def test_hostile_format_ends_no_other_request(server: Server, gpt: openai.OpenAI) -> None:
    server.unload()
    gpt.completions.create(model="tiny", prompt="hello", max_tokens=1)
    runner = server.runner()
    hostile: list[dict[str, Any]] = [
        {"guided_regex": "(a{1000}){1000}{1000}"},
        {"guided_regex": "(" * 5000},
        {"grammar": "root ::= " + "(" * 30_000},
        {
            "guided_json": {
                "allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]
            }
        },
        {"guided_json": {"enum": [f"value {i}" for i in range(10_000)]}},
    ]

    def attack(fields: dict[str, Any]) -> None:
        try:
            gpt.completions.create(model="tiny", prompt="hello", max_tokens=3, extra_body=fields)
        except openai.BadRequestError:
            return

    with ThreadPoolExecutor(len(hostile)) as pool:
        attacks = [pool.submit(attack, fields) for fields in hostile]
        Pet.model_validate_json(ask(server, 1, format=Pet.model_json_schema()).message.content)
        for one in attacks:
            one.result()
    assert server.runners() == [runner]


def test_command_line_accepts_a_format(server: Server) -> None:
    words = ("run", "tiny", "--format", json.dumps(Pet.model_json_schema()), "hello")
    done = commands.run(*words, env=environment(server.models, PUNA_HOST=server.url))
    Pet.model_validate_json(done.stdout)
