"""Requests of the Responses API, and what they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import Field

from puna.chat.templates.messages import Message
from puna.errors import RequestError, UnavailableError, shown
from puna.grammar.format import Format
from puna.server.http.bodies import Body, Many, Name
from puna.server.jobs.jobs import GenerationSpec
from puna.server.jobs.own_fields import ChatFields, OwnFields, SamplingFields, only_one
from puna.server.jobs.tools import ToolUse, chat_choice, function
from puna.server.openai.responses.items import Item, prompt_messages
from puna.server.openai.wire import response_format, think

#: What `include` asks for here; other things there are none of.
LOGPROBS: Final = "message.output_text.logprobs"

_MAX_METADATA: Final = 64


class TextConfig(Body):
    format: dict[str, Any] | None = None
    verbosity: Any = None


class ReasoningConfig(Body):
    effort: str = ""
    summary: Any = None
    generate_summary: Any = None


class ResponsesRequest(OwnFields, ChatFields, SamplingFields):
    """`/v1/responses`"""

    model: Name = ""
    input: Any = None
    instructions: str = ""
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None  # Puna's own
    tools: Many[dict[str, Any]] = Field(default_factory=list)
    reasoning: ReasoningConfig = ReasoningConfig()
    text: TextConfig = TextConfig()
    stream: bool = False
    store: bool = True
    previous_response_id: str = ""
    include: Many[str] = Field(default_factory=list)
    truncation: str = "disabled"
    top_logprobs: int = 0
    metadata: dict[str, str] = Field(default_factory=dict, max_length=_MAX_METADATA)
    background: bool = False
    conversation: Any = None
    prompt: Any = None
    # What an answer does not depend on here.
    max_tool_calls: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    stream_options: Any = None
    user: Any = None

    @property
    def logprobs(self) -> bool:
        return LOGPROBS in self.include or self.top_logprobs > 0

    def asked(self, items: Sequence[Item]) -> GenerationSpec:
        """What is asked for about a conversation of `items`. Raises RequestError, UnavailableError."""
        for name in ("background", "conversation", "prompt"):
            if getattr(self, name):
                raise UnavailableError(f"{name} is not available in this version of the Responses API")
        if self.truncation not in ("auto", "disabled"):
            raise RequestError(f'truncation must be "auto" or "disabled", not {shown(self.truncation)}')
        use, unusable = self._tools()
        first = [Message(role="system", content=self.instructions)] if self.instructions else []
        messages = first + prompt_messages(items)
        return GenerationSpec(
            model=self.model,
            endpoint="chat",
            request=self.request(
                truncate=self.truncation == "auto",
                logprobs=self.logprobs,
                top_logprobs=self.top_logprobs,
                stream_calls=self.stream,
            ),
            prompts=[self.chat(use, messages)],
            options=self._options(),
            think=think(self.reasoning.effort),
            thinks_if_able=True,
            format=self._format,
            images=[image for message in messages for image in message.images],
            needs=use.needs,
            ignored=[*self.ignored, *unusable],
        )

    def _options(self) -> dict[str, Any]:
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise RequestError(f"max_output_tokens must be at least 1, not {self.max_output_tokens}")
        given = {
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "seed": self.seed,
            "num_predict": self.max_output_tokens,
            **self.sampling(),
        }
        return {name: value for name, value in given.items() if value is not None}

    def _format(self) -> Format | None:
        formats = self.formats()
        given = self.text.format
        if given is not None and given.get("type") == "json_schema":
            given = {"type": "json_schema", "json_schema": given.get("json_schema", given)}
        if given is not None and (found := response_format(given, "text.format")) is not None:
            formats["text.format"] = found
        return only_one(formats)

    def _tools(self) -> tuple[ToolUse, list[str]]:
        """What is said of tools, and sentences about those that only OpenAI's own servers have."""
        tools, unusable = [], []
        for place, tool in enumerate(self.tools):
            if (kind := tool.get("type")) != "function":
                unusable.append(f"tools[{place}] is ignored: tools of the type {shown(kind)} are not here")
                continue
            # Some send them as chats have them.
            said = tool["function"] if isinstance(tool.get("function"), dict) else tool
            tools.append(
                function(
                    said.get("name"),
                    said.get("description"),
                    said.get("parameters"),
                    f"tools[{place}]",
                    said.get("strict"),
                )
            )
        strict = any(tool["function"].get("strict") for tool in tools)
        return chat_choice(replace(ToolUse(tools), strict=strict), self.tool_choice), unusable
