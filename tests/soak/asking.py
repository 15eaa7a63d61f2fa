"""Ways to ask a question and read the complete answer: the usual clients, and plain HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import openai

from tests.soak.answers import Answer, from_native, from_openai
from tests.soak.questions import Question

#: A request that takes this long is hanging, however busy the machine.
LIMIT_S = 240.0


class RefusedError(Exception):
    """An error reply of the server. `status` is 200 if the error was part of a stream."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Clients:
    """The clients of one user, one of each kind."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=LIMIT_S)
        # A small buffer makes the server wait for a slow reader.
        small_buffer = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
        self.slow = httpx.Client(base_url=url, timeout=LIMIT_S, transport=small_buffer)
        self.ollama = ollama.Client(host=url, timeout=LIMIT_S)
        self.openai = openai.OpenAI(base_url=url + "/v1/", api_key="unused", max_retries=0, timeout=LIMIT_S)

    def close(self) -> None:
        for client in (self.http, self.slow, self.ollama, self.openai):
            client.close()


def ask(http: httpx.Client, question: Question, *, stream: bool = False, **extra: Any) -> Answer:
    """Ask over plain HTTP. Raises RefusedError."""
    body = question.body(stream=stream, **extra)
    if stream:
        with http.stream("POST", question.path, json=body) as response:
            return read(question, replies(response))
    response = http.post(question.path, json=body)
    check(response)
    return read(question, [response.json()])


def ask_usual(clients: Clients, question: Question, *, stream: bool, **extra: Any) -> Answer:
    """Ask with the API's own client library. Raises RefusedError."""
    body = question.body(stream=stream, **extra)
    call: Any
    if question.native:
        call = clients.ollama.chat if question.path == "/api/chat" else clients.ollama.generate
    elif question.path == "/v1/chat/completions":
        call = clients.openai.chat.completions.create
    else:
        call = clients.openai.completions.create
    try:
        result = call(**body)
        return read(question, (part.model_dump() for part in (result if stream else [result])))
    except ollama.ResponseError as error:
        status = 200 if error.status_code == -1 else error.status_code  # -1: an error within a stream
        raise RefusedError(status, error.error) from error
    except openai.APIStatusError as error:
        raise RefusedError(error.status_code, message_of(error.response)) from error
    except openai.APIConnectionError:
        raise
    except openai.APIError as error:  # an error event within a stream
        raise RefusedError(200, error.message) from error


def read(question: Question, parts: Any) -> Answer:
    return from_native(parts) if question.native else from_openai(parts)


def replies(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream as they arrive. Raises RefusedError."""
    if response.status_code != 200:
        response.read()
        check(response)
    for line in response.iter_lines():
        data = line.removeprefix("data: ")
        if data and data != "[DONE]" and not line.startswith(":"):  # a comment while nothing comes
            value = json.loads(data)
            if "error" in value:
                raise RefusedError(200, _error_message(value))
            yield value


def check(response: httpx.Response) -> None:
    """Raise RefusedError unless the status is 200."""
    if response.status_code != 200:
        raise RefusedError(response.status_code, message_of(response))


def message_of(response: httpx.Response) -> str:
    """Return the message of an error reply. Raises AssertionError if it is not a documented kind of error."""
    try:
        return _error_message(response.json())
    except (ValueError, KeyError, TypeError) as error:
        raise AssertionError(f"status {response.status_code} with {response.text[:200]!r}") from error


def _error_message(value: dict[str, Any]) -> str:
    error = value["error"]
    message = error if isinstance(error, str) else error["message"]
    assert isinstance(message, str)
    assert message
    return message
