"""Request bodies of the OpenAI API, and what they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec.structs
from pydantic import Field

from puna.chat.templates.messages import PLACE, Chat, Insert, Message
from puna.errors import RequestError, UnavailableError, shown
from puna.grammar.format import Format
from puna.options import THINK_LEVELS
from puna.protocol import MAX_SAMPLES, Prompt
from puna.server.http.bodies import Body, Many, Messages, Name
from puna.server.jobs.images import from_url
from puna.server.jobs.jobs import GenerationSpec, check_top_logprobs
from puna.server.jobs.own_fields import (
    ChatFields,
    OwnFields,
    ProgressField,
    SamplingFields,
    only_one,
    texts_or_tokens,
)
from puna.server.jobs.tools import ToolUse, called, chat_choice, chat_tools


class ChatMessage(Body):
    role: str = ""
    content: Any = None
    name: str = ""
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: Many[dict[str, Any]] = Field(default_factory=list)
    tool_call_id: str = ""
    function_call: dict[str, Any] | None = None  # what `tool_calls` were before there were several

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Raises RequestError."""
        found = [*self.tool_calls, *([{"function": self.function_call}] if self.function_call else [])]
        return [_tool_call(call) for call in found]


def prompt_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages of the prompt. Raises RequestError."""
    names = _called_names(messages)
    return [part for message in messages for part in _messages(message, names)]


def _messages(message: ChatMessage, names: Mapping[str, str]) -> list[Message]:
    """The messages of a prompt that one of a request comes to: one for each part of a list content.

    `names` are those of called functions by the id of the call.
    """
    role = message.role.lower()
    role = {"developer": "system", "function": "tool"}.get(role, role)
    calls = message.calls
    if isinstance(message.content, str) or (message.content is None and calls):
        parts = [Message(role=role, content=message.content or "")]
    elif isinstance(message.content, list):
        parts = with_images([_part(role, part) for part in message.content]) or [Message(role=role)]
    else:
        kind = "null" if message.content is None else type(message.content).__name__
        raise RequestError(f"invalid message content type: {kind}; give a string or a list of parts")
    extra: dict[str, Any] = {
        "tool_calls": calls,
        "thinking": message.reasoning or message.reasoning_content,
    }
    if role == "tool":
        extra |= {
            "tool_call_id": message.tool_call_id,
            "tool_name": message.name or names.get(message.tool_call_id, ""),
        }
    parts[-1] = msgspec.structs.replace(parts[-1], **extra)
    return parts


def with_images(parts: list[Message]) -> list[Message]:
    """`parts` as one message if there are images among them, each where it stood between the texts."""
    if not any(part.images for part in parts) or any(PLACE in part.content for part in parts):
        return parts
    content = "".join(PLACE if part.images else part.content for part in parts)
    images = [image for part in parts for image in part.images]
    return [msgspec.structs.replace(parts[0], content=content, images=images)]


def _part(role: str, part: Any) -> Message:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "refusal") and isinstance(part.get(kind), str):
        return Message(role=role, content=part[kind])
    if kind == "image_url":
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
        if not isinstance(url, str):
            raise RequestError("invalid message format: image_url needs a url")
        return Message(role=role, images=[from_url(url)])
    if kind == "input_audio":
        raise UnavailableError("audio input (input_audio) is not available yet in this version")
    raise RequestError(f"invalid message format: a part of type {kind!r} is not known")


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        raise RequestError("invalid tool call: it needs a function with a name")
    return called(call.get("id"), function.get("name"), function.get("arguments"))


def _called_names(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """The names of called functions by the id of the call."""
    return {
        identifier: function["name"]
        for message in messages
        for call in message.tool_calls
        if isinstance(identifier := call.get("id"), str)
        and isinstance(function := call.get("function"), dict)
        and isinstance(function.get("name"), str)
    }


_EFFORTS: dict[str, bool | str] = {
    **{level: level for level in THINK_LEVELS},
    "none": False,
    "minimal": "low",
    "xhigh": "high",
}


class StreamOptions(Body):
    include_usage: bool = False


class Reasoning(Body):
    effort: str = ""


#: All answers of one request.
_MAX_CHOICES = 2048
_MAX_TOKEN = 2**31 - 1


class OpenAIRequest(OwnFields, ProgressField, SamplingFields):
    """What both kinds of completion have in common."""

    model: Name = ""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: Any = None
    n: int = 1
    logit_bias: dict[str, Any] = Field(default_factory=dict)
    response_format: dict[str, Any] | None = None

    def _format(self) -> Format | None:
        """What the answers must be like. Raises RequestError."""
        formats = self.formats()
        if self.response_format is not None and (found := response_format(self.response_format)) is not None:
            formats["response_format"] = found
        return only_one(formats)

    @property
    def stops(self) -> list[str]:
        if self.stop is None:
            return []
        if isinstance(self.stop, str):
            return [self.stop]
        if isinstance(self.stop, list) and all(isinstance(item, str) for item in self.stop):
            return list(self.stop)
        raise RequestError("invalid type for 'stop': give a string or a list of strings")

    def options(self, max_tokens: int | None) -> dict[str, Any]:
        """Native options. Temperature and top_p default to 1 here, whatever the model itself says."""
        self._check()
        given = {
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "seed": self.seed,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "num_predict": max_tokens,
            "stop": self.stops or None,
            "logit_bias": self.logit_bias or None,
            **self.sampling(),
        }
        return {name: value for name, value in given.items() if value is not None}

    def _check(self) -> None:
        if not 1 <= self.n <= MAX_SAMPLES:
            raise RequestError(f"n must be between 1 and {MAX_SAMPLES}, not {self.n}")


class ChatCompletionRequest(OpenAIRequest, ChatFields):
    messages: Messages[ChatMessage] = Field(default_factory=list)
    max_completion_tokens: int | None = None
    tools: Many[dict[str, Any]] = Field(default_factory=list)
    functions: Many[dict[str, Any]] = Field(default_factory=list)  # what `tools` were called first
    function_call: Any = None
    reasoning: Reasoning = Reasoning()
    reasoning_effort: str = ""
    logprobs: bool = False
    top_logprobs: int = 0

    def asked(self) -> GenerationSpec:
        if not self.messages:
            raise RequestError("[] is too short - 'messages'")
        messages = prompt_messages(self.messages)
        use = self._tools()
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return GenerationSpec(
            model=self.model,
            endpoint="chat",
            request=self.request(
                samples=self.n,
                logprobs=self.logprobs,
                top_logprobs=self.top_logprobs,
                progress=self.progress,
                stream_calls=self.stream,
            ),
            prompts=[self.chat(use, messages)],
            think=think(self.reasoning.effort or self.reasoning_effort),
            thinks_if_able=True,
            format=self._format,
            options=self.options(limit),
            images=[image for message in messages for image in message.images],
            needs=use.needs,
            ignored=self.ignored,
        )

    @property
    def with_functions(self) -> bool:
        """Whether calls are told of as they were before there were tools."""
        return bool(self.functions) and not self.tools

    def _tools(self) -> ToolUse:
        if not self.with_functions:
            tools = chat_tools(self.tools)
            strict = any(tool["function"].get("strict") for tool in tools)
            return chat_choice(ToolUse(tools, strict=strict), self.tool_choice)
        tools = chat_tools([{"function": one} for one in self.functions], "functions")
        choice = self.function_call
        if isinstance(choice, dict):
            choice = {"type": "function", "function": choice}
        return chat_choice(ToolUse(tools, parallel=False), choice)


def think(effort: str) -> bool | str | None:
    """`think` of the native API for a `reasoning_effort`. Raises RequestError."""
    if not effort:
        return None
    if effort not in _EFFORTS:
        levels = ", ".join(f'"{level}"' for level in THINK_LEVELS)
        raise RequestError(f"invalid reasoning value: '{effort}' (must be {levels}, or \"none\")")
    return _EFFORTS[effort]


class CompletionRequest(OpenAIRequest):
    prompt: Any = ""
    suffix: str = ""
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        prompts = texts_or_tokens(self.prompt)
        if prompts is None or not all(isinstance(one, str) or _are_tokens(one) for one in prompts):
            raise RequestError(_PROMPT_KINDS)
        if len(prompts) > 1 and len(prompts) * self.n > _MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with n={self.n} are {len(prompts) * self.n} choices, and at most "
                f"{_MAX_CHOICES} are allowed in one request"
            )
        return prompts

    @property
    def generates(self) -> bool:
        """Whether to generate anything; otherwise the prompts are only evaluated."""
        return self.max_tokens != 0

    def asked(self) -> GenerationSpec:
        """What is echoed, scored or token ids stands as it is: else its template would be scored as well."""
        if self.best_of not in (None, self.n):
            raise RequestError(
                f"best_of must be n ({self.n}) or left out, not {self.best_of}: "
                f"ask for n={self.best_of} with logprobs, and choose among the answers"
            )
        if self.logprobs is not None:
            check_top_logprobs(self.logprobs, "logprobs")
        prompts = self.prompts
        raw = self.echo or not all(isinstance(prompt, str) for prompt in prompts)
        if raw and self.suffix:
            raise RequestError("suffix is for a prompt given as text, without echo: leave it out")
        return GenerationSpec(
            model=self.model,
            endpoint="generate",
            request=self.request(
                samples=self.n,
                truncate=not self.echo,
                logprobs=self.logprobs is not None,
                top_logprobs=self.logprobs or 0,
                progress=self.progress,
                prompt_logprobs=not self.generates or (self.echo and self.logprobs is not None),
            ),
            prompts=[self._prompt(prompt, raw) for prompt in prompts] if any(prompts) else [],
            think=False if raw else None,
            format=self._format,
            options=self.options(self.max_tokens),
            needs=["insert"] if self.suffix else [],
            raw=raw,
            echo=self.echo,
            ignored=self.ignored,
        )

    def _prompt(self, prompt: str | list[int], raw: bool) -> Prompt:
        if raw or not isinstance(prompt, str):
            return prompt
        if self.suffix:
            return Insert(before=prompt, after=self.suffix)
        return Chat(messages=[Message(role="user", content=prompt)])


def response_format(given: Mapping[str, Any], name: str = "response_format") -> Format | None:
    """OpenAI's `response_format`; an object may have a schema, as in llama.cpp. Raises RequestError."""
    kind = given.get("type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return Format.json_schema(given["schema"]) if given.get("schema") else Format.json_object()
    if kind != "json_schema":
        raise RequestError(f"{name}.type must be text, json_object or json_schema, not {shown(kind)}")
    described = given.get("json_schema")
    if not isinstance(described, dict) or described.get("schema") is None:
        raise RequestError(
            "response_format.json_schema.schema is missing: it is the JSON schema of the answer"
        )
    return Format.json_schema(described["schema"])


_PROMPT_KINDS = (
    "prompt must be a text, a list of token ids (not empty, none negative), "
    "or a list of texts or of such lists"
)


def _are_tokens(ids: list[int]) -> bool:
    return all(0 <= id <= _MAX_TOKEN for id in ids)
