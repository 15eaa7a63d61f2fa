"""Request bodies of Anthropic's Messages API, and what they ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec.structs
from pydantic import Field

from puna.errors import RequestError, shown
from puna.grammar.format import Format
from puna.server.anthropic.blocks import MessageParam, prompt_messages, system_text
from puna.server.http.bodies import Body, Many, Messages, Name
from puna.server.jobs.jobs import GenerationSpec
from puna.server.jobs.own_fields import ChatFields, OwnFields, SamplingFields, only_one
from puna.server.jobs.tools import ToolUse, function

_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "max"}


class ThinkingConfig(Body):
    """`budget_tokens` cannot be kept to: what a model thinks ends where it ends it."""

    type: str = ""
    budget_tokens: int | None = None
    display: str = ""


class OutputConfig(Body):
    effort: str = ""
    format: dict[str, Any] | None = None


class CountRequest(OwnFields, ChatFields, SamplingFields):
    """`/v1/messages/count_tokens`"""

    model: Name = ""
    messages: Messages[MessageParam] = Field(default_factory=list)
    system: Any = None
    tools: Many[dict[str, Any]] = Field(default_factory=list)
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: dict[str, Any] | None = None
    # What an answer does not depend on here: prompts are cached by themselves.
    cache_control: Any = None
    context_management: Any = None
    metadata: Any = None
    service_tier: Any = None
    betas: Any = None

    @property
    def shows_thinking(self) -> bool:
        """Whether there are blocks of thinking: nobody gets them without asking."""
        return self.thinks and (self.thinking is None or self.thinking.display != "omitted")

    @property
    def thinks(self) -> bool:
        """Whether thinking is asked for."""
        if self.thinking is not None and self.thinking.type:
            return self.thinking.type != "disabled"
        return bool(self.output_config.effort)

    def asked(self) -> GenerationSpec:
        return self._asked({})

    def _asked(self, options: dict[str, Any]) -> GenerationSpec:
        if not self.model.strip():
            raise RequestError("model is required")
        self._check()
        if not self.messages:
            raise RequestError("messages is required")
        messages, ignored = prompt_messages(self.messages)
        use, unusable = self._tools()
        if self.thinking is not None and self.thinking.budget_tokens:
            ignored.append("thinking.budget_tokens is ignored: a model thinks as long as it does")
        return GenerationSpec(
            model=self.model,
            endpoint="chat",
            request=self.request(truncate=False),
            prompts=[self.chat(use, system_text(self.system) + messages)],
            options=options,
            think=self._think(),
            thinks_if_able=True,
            format=self._format,
            images=[image for message in messages for image in message.images],
            needs=use.needs,
            ignored=[*self.ignored, *ignored, *unusable],
        )

    def _check(self) -> None:
        """Raises RequestError for what this kind of request lacks."""

    def _think(self) -> bool | str:
        kind = self.thinking.type if self.thinking is not None else ""
        if kind not in ("", "enabled", "disabled", "adaptive"):
            raise RequestError(
                f'thinking.type must be "enabled", "adaptive" or "disabled", not {shown(kind)}'
            )
        effort = self.output_config.effort
        if effort and effort not in _EFFORTS:
            raise RequestError(f"output_config.effort must be one of {list(_EFFORTS)}, not {shown(effort)}")
        if not self.thinks:
            return False
        return _EFFORTS.get(effort, True)

    def _format(self) -> Format | None:
        formats = self.formats()
        for name, given in (
            ("output_config.format", self.output_config.format),
            ("output_format", self.output_format),
        ):
            if given is None:
                continue
            if given.get("type") != "json_schema" or given.get("schema") is None:
                raise RequestError(f'{name} must be {{"type": "json_schema", "schema": {{...}}}}')
            formats[name] = Format.json_schema(given["schema"])
        return only_one(formats)

    def _tools(self) -> tuple[ToolUse, list[str]]:
        """What is said of tools, and sentences about those that only Anthropic's own servers have."""
        tools, unusable = [], []
        for place, tool in enumerate(self.tools):
            kind = tool.get("type") or "custom"
            if kind != "custom":
                unusable.append(f"tools[{place}] is ignored: tools of the type {shown(kind)} are not here")
                continue
            name, schema = tool.get("name"), tool.get("input_schema")
            if not isinstance(schema, dict):
                raise RequestError(f"invalid input_schema for tool {shown(name)}: it must be an object")
            tools.append(
                function(name, tool.get("description"), schema, f"tools[{place}]", tool.get("strict"))
            )
        strict = any(tool["function"].get("strict") for tool in tools)
        return self._choose(ToolUse(tools, strict=strict)), unusable

    def _choose(self, use: ToolUse) -> ToolUse:
        given = self.tool_choice
        if given is None:
            return use
        if isinstance(given, dict):
            use = replace(use, parallel=given.get("disable_parallel_tool_use") is not True)
        match given:
            case {"type": "auto"}:
                return use
            case {"type": "none"}:
                return replace(use, choice="none")
            case {"type": "any"}:
                return replace(use, choice="required")
            case {"type": "tool", "name": str(name)}:
                return replace(use, choice=f"function:{name}")
        raise RequestError(
            'tool_choice must be {"type": "auto"}, {"type": "any"}, {"type": "none"} or '
            f'{{"type": "tool", "name": "..."}}, not {shown(given)}'
        )


class MessagesRequest(CountRequest):
    """`/v1/messages`"""

    max_tokens: int | None = None
    stop_sequences: Many[str] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None  # Puna's own

    def asked(self) -> GenerationSpec:
        """Options that are absent are the model's own, unlike in OpenAI's API."""
        given = {
            "num_predict": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": self.stop_sequences or None,
            **self.sampling(),
        }
        asked = self._asked({name: value for name, value in given.items() if value is not None})
        request = msgspec.structs.replace(asked.request, stream_calls=self.stream)
        return replace(asked, request=request)

    def _check(self) -> None:
        if self.max_tokens is None or self.max_tokens <= 0:
            raise RequestError("max_tokens is required and must be positive")
