"""Request bodies of OpenAI's API, read into generation requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from puna.chat.templates.messages import Chat, Insert, Message
from puna.errors import RequestError, shown
from puna.grammar.format import Format
from puna.options import THINK_LEVELS
from puna.protocol import MAX_SAMPLES, Prompt
from puna.server.http.bodies import Body, Many, Messages, Name
from puna.server.jobs.jobs import GenerationSpec, check_top_logprobs
from puna.server.jobs.own_fields import (
    ChatFields,
    ChatMessage,
    OwnFields,
    ProgressField,
    SamplingFields,
    only_one,
    prompt_messages,
    texts_or_tokens,
)
from puna.server.jobs.tools import ToolUse, chat_choice, chat_tools

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


#: Maximum answers of one request.
_MAX_CHOICES = 2048
_MAX_TOKEN = 2**31 - 1


class OpenAIRequest(OwnFields, ProgressField, SamplingFields):
    """The common fields of chat and text completions."""

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
    id_slot: Any = None  # of llama.cpp's server; here all slots share the prompt cache

    def _format(self) -> Format | None:
        """Return the format of the answers. Raises RequestError."""
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
        """Return Puna's options; temperature and top_p default to 1, even if the model has its own."""
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
    functions: Many[dict[str, Any]] = Field(default_factory=list)  # the former name of `tools`
    function_call: Any = None
    reasoning: Reasoning = Reasoning()
    reasoning_effort: str = ""
    logprobs: bool = False
    top_logprobs: int = 0

    def spec(self) -> GenerationSpec:
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
                # An agent that loses the beginning of its task does the same again and again.
                truncate=not use.tools,
                logprobs=self.logprobs,
                top_logprobs=self.top_logprobs,
                progress=self.progress,
                stream_calls=self.stream,
            ),
            prompts=[self.chat(use, messages)],
            think=think(self.reasoning.effort or self.reasoning_effort),
            format=self._format,
            options=self.options(limit),
            images=[image for message in messages for image in message.images],
            needs=use.needs,
            ignored=self.ignored,
        )

    @property
    def with_functions(self) -> bool:
        """Whether calls have the former form, from before there were tools."""
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
    """Return `think` of Ollama's API for a `reasoning_effort`. Raises RequestError."""
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
            raise RequestError(_PROMPT_FORMS)
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

    def spec(self) -> GenerationSpec:
        """Return the generation request.

        Prompts that are echoed, scored or token ids are used as they are, since otherwise the template would
        be scored too.
        """
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
            raise RequestError("suffix needs a prompt given as text, without echo: leave it out")
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
    """Return the format of a `response_format`; as in llama.cpp, `json_object` may have a schema.

    Raises RequestError.
    """
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


_PROMPT_FORMS = (
    "prompt must be a string, a list of token ids (not empty, none negative), "
    "or a list of strings or of such lists"
)


def _are_tokens(ids: list[int]) -> bool:
    return all(0 <= id <= _MAX_TOKEN for id in ids)
