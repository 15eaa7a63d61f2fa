"""Request bodies of Anthropic's Messages API, read into generation requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec.structs
from pydantic import Field

from puna.chat.templates.messages import PLACE, Message
from puna.errors import RequestError, UnavailableError, shown
from puna.grammar.format import Format
from puna.server.http.bodies import Body, Many, Messages, Name
from puna.server.jobs.documents import File
from puna.server.jobs.images import from_base64, from_url
from puna.server.jobs.jobs import GenerationSpec
from puna.server.jobs.own_fields import ChatFields, OwnFields, ProgressField, SamplingFields, only_one
from puna.server.jobs.tools import ToolUse, called, function

_ROLES: Final = ("user", "assistant", "system")

#: Blocks that add nothing to a prompt, because only Anthropic can read them or has run their tools.
_EMPTY: Final = ("redacted_thinking", "server_tool_use", "web_search_tool_result", "container_upload")


#: The line that Claude Code puts before its system prompt for Anthropic's accounting: fields with a version
#: and a checksum of the request, so that no two prompts would begin alike.
_BILLING: Final = re.compile(
    r"x-anthropic-billing-header:(?: ?[a-z_]{1,32}=[\w.\-]{0,64};){1,16}[ \t]*(?:\n|\Z)"
)


class MessageParam(Body):
    role: str = ""
    content: Any = None


def without_billing(text: str) -> str:
    """Return a system text without the billing line that it begins with, if there is one."""
    found = _BILLING.match(text)
    return text if found is None else text[found.end() :]


def system_text(given: Any) -> tuple[list[Message], list[str]]:
    """Return the system message, if there is one, and a sentence about an ignored billing line.

    Blocks become paragraphs. Raises RequestError.
    """
    if given is None:
        return [], []
    blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given
    if not isinstance(blocks, list):
        raise RequestError("system must be a string or a list of text blocks")
    texts = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                raise RequestError("system must be a string or a list of text blocks")
    ignored = []
    if texts and (rest := without_billing(texts[0])) != texts[0]:
        texts[:1] = [rest] if rest else []
        ignored.append("system: the billing line at its beginning is ignored")
    text = "\n\n".join(texts)
    return [Message(role="system", content=text)] if text else [], ignored


def prompt_messages(given: Sequence[MessageParam]) -> tuple[list[Message], list[str]]:
    """Return the messages of the prompt, and sentences about ignored blocks. Raises RequestError."""
    reader = _Reader()
    messages: list[Message] = []
    for place, message in enumerate(given):
        messages += reader.messages(message, f"messages[{place}]")
    return messages, [f'blocks of the type "{kind}" are ignored' for kind in sorted(reader.unknown)[:8]]


class _Reader:
    """Reader of messages, one after the other; `unknown` collects the unknown types of blocks."""

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        self._names: dict[str, str] = {}  # of called tools, by the id of the call

    def messages(self, given: MessageParam, where: str) -> Iterator[Message]:
        """Yield the prompt messages of one message; each tool result becomes a message before the others."""
        role = given.role.lower()
        if role not in _ROLES:
            raise RequestError(f'{where}.role must be "user" or "assistant", not {shown(given.role)}')
        parts = _Parts()
        for at, block in self._blocks(given.content, where):
            match block:
                case {"type": "tool_result"}:
                    yield self._result(block, at)
                case {"type": "tool_use"}:
                    parts.calls.append(self._call(block, at))
                case {"type": "thinking"}:
                    parts.thinking.append(str(block.get("thinking") or ""))
                case _:
                    self._content(parts, block, at)
        if parts.has_content or not isinstance(given.content, list):
            yield parts.message(role)

    def _blocks(self, content: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(content, str):
            yield where, {"type": "text", "text": content}
            return
        if not isinstance(content, list):
            raise RequestError(f"{where}.content must be a string or a list of blocks")
        for place, block in enumerate(content):
            at = f"{where}.content[{place}]"
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                raise RequestError(f"{at} must be a block, which is an object with a type")
            yield at, block

    def _content(self, parts: _Parts, block: dict[str, Any], at: str) -> None:
        """Add a block of text, an image or a document."""
        match block:
            case {"type": "text", "text": str(text)}:
                parts.texts.append(text)
            case {"type": "image"}:
                parts.image(_image(block.get("source"), at))
            case {"type": "document"}:
                self._document(parts, block, at)
            case {"type": "search_result"}:
                _refuse_citations(block, at)
                for inner_at, inner in self._blocks(block.get("content") or [], at):
                    self._content(parts, inner, inner_at)
            case {"type": "text" | "tool_use" | "tool_result"}:
                raise RequestError(f"{at}: a block of the type {shown(block['type'])} is malformed here")
            case {"type": str(kind)} if kind not in _EMPTY:
                self.unknown.add(kind[:40])

    def _document(self, parts: _Parts, block: dict[str, Any], at: str) -> None:
        """Add a document after its title and its context."""
        _refuse_citations(block, at)
        for name in ("title", "context"):
            if isinstance(heading := block.get(name), str) and heading:
                parts.texts.append(f"{heading}\n\n")
        match block.get("source"):
            case {"type": "text", "data": str(text)}:
                parts.texts.append(text)
            case {"type": "content", "content": content}:
                for inner_at, inner in self._blocks(content, f"{at}.source"):
                    self._content(parts, inner, inner_at)
            case {"type": "url" | "file" as kind}:
                raise UnavailableError(f"{at}: documents by {kind} are not supported; send them as base64")
            case _:
                raise RequestError(
                    f'{at}.source must be {{"type": "text" or "base64", "media_type": ..., "data": ...}} or '
                    '{"type": "content", "content": [...]}'
                )

    def _call(self, block: dict[str, Any], at: str) -> dict[str, Any]:
        for key in ("id", "name"):
            if not isinstance(block.get(key), str) or not block[key]:
                raise RequestError(f"{at}: tool_use block missing required '{key}' field")
        self._names[block["id"]] = block["name"]
        arguments = block.get("input")
        return called(block["id"], block["name"], {} if arguments is None else arguments)

    def _result(self, block: dict[str, Any], at: str) -> Message:
        identifier = block.get("tool_use_id")
        if not isinstance(identifier, str):
            raise RequestError(f"{at}: tool_result block missing required 'tool_use_id' field")
        parts = _Parts()
        content = block.get("content")
        for inner_at, inner in self._blocks("" if content is None else content, at):
            self._content(parts, inner, inner_at)
        return parts.message("tool", tool_call_id=identifier, tool_name=self._names.get(identifier, ""))


class _Parts:
    """The content of one message, collected from its blocks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.images: list[Any] = []
        self.calls: list[dict[str, Any]] = []
        self.thinking: list[str] = []

    @property
    def has_content(self) -> bool:
        return bool(self.texts or self.calls or self.thinking)

    def image(self, image: Any) -> None:
        """Add an image at the current place between the texts."""
        self.images.append(image)
        self.texts.append(PLACE)

    def message(self, role: str, **more: str) -> Message:
        texts = self.texts
        if any(PLACE in text and text != PLACE for text in texts):
            # A text contains the placeholder, so all images go before the text.
            texts = [text for text in texts if text != PLACE]
        return Message(
            role=role,
            content="".join(texts),
            thinking="".join(self.thinking),
            images=self.images,
            tool_calls=self.calls,
            **more,
        )


def _refuse_citations(block: dict[str, Any], at: str) -> None:
    match block.get("citations"):
        case {"enabled": enabled} if enabled:
            raise UnavailableError(f"{at}.citations are not supported: leave them out, or enabled false")


def _files(blocks: Any, at: str) -> Iterator[File]:
    """Yield the documents in base64 among `blocks`, and among those in their content."""
    for place, block in enumerate(blocks if isinstance(blocks, list) else ()):
        match block:
            case {
                "type": "document",
                "source": {"type": "base64", "media_type": str(kind), "data": str(data)} as source,
            }:
                put = partial(_put_text, source)
                yield File(f"{at}[{place}]", kind.lower(), data, put)
            case {"type": "tool_result", "content": content}:
                yield from _files(content, f"{at}[{place}].content")


def _put_text(source: dict[str, Any], text: str) -> None:
    source.clear()
    source.update(type="text", data=text)


def _image(source: Any, at: str) -> Any:
    match source:
        case {"type": "base64", "data": str(data)}:
            return from_base64(data)
        case {"type": "url", "url": str(url)}:
            return from_url(url)
        case {"type": "file"}:
            raise UnavailableError(f"{at}: files are not supported by this version; send the image as base64")
    raise RequestError(
        f'{at}.source must be {{"type": "base64", "media_type": ..., "data": ...}} or '
        '{"type": "url", "url": ...}'
    )


def _is_marked(blocks: Any) -> bool:
    """Whether one of the blocks, or of the blocks in their content, has `cache_control`."""
    if not isinstance(blocks, list):
        return False
    return any(
        isinstance(block, dict)
        and (block.get("cache_control") is not None or _is_marked(block.get("content")))
        for block in blocks
    )


_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "max"}


class ThinkingConfig(Body):
    """Settings of thinking, which gets at most `budget_tokens`."""

    type: str = ""
    budget_tokens: int | None = None
    display: str = ""


class OutputConfig(Body):
    effort: str = ""
    format: dict[str, Any] | None = None


class CountRequest(OwnFields, ChatFields, SamplingFields):
    """The body of `/v1/messages/count_tokens`."""

    model: Name = ""
    messages: Messages[MessageParam] = Field(default_factory=list)
    system: Any = None
    tools: Many[dict[str, Any]] = Field(default_factory=list)
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: dict[str, Any] | None = None
    # Fields without effect on answers here; prompts are always cached.
    cache_control: Any = None
    context_management: Any = None
    metadata: Any = None
    service_tier: Any = None
    betas: Any = None

    def files(self) -> Iterator[File]:
        """Yield the documents whose text must be read before there is a `spec`."""
        for place, message in enumerate(self.messages):
            yield from _files(message.content, f"messages[{place}].content")

    @property
    def marks_cache(self) -> bool:
        """Whether the request says what to cache, by `cache_control` in any place."""
        if not self.cache_prompt:
            return False
        contents = [message.content for message in self.messages]
        return self.cache_control is not None or any(map(_is_marked, (self.system, self.tools, *contents)))

    @property
    def shows_thinking(self) -> bool:
        """Whether the reply has thinking blocks, which must be requested."""
        return self.thinks and (self.thinking is None or self.thinking.display != "omitted")

    @property
    def thinks(self) -> bool:
        """Whether thinking is requested."""
        if self.thinking is not None and self.thinking.type:
            return self.thinking.type != "disabled"
        return bool(self.output_config.effort)

    def spec(self) -> GenerationSpec:
        return self._spec({})

    def _spec(self, options: dict[str, Any]) -> GenerationSpec:
        if not self.model.strip():
            raise RequestError("model is required")
        self._check()
        if not self.messages:
            raise RequestError("messages is required")
        system, billing = system_text(self.system)
        messages, ignored = prompt_messages(self.messages)
        use, unusable = self._tools()
        return GenerationSpec(
            model=self.model,
            endpoint="chat",
            request=self.request(truncate=False, think_budget=self._budget),
            # In this API, a system message among the others is meant to stay there.
            prompts=[msgspec.structs.replace(self.chat(use, system + messages), system_in_place=True)],
            options=options,
            think=self._think(),
            format=self._format,
            images=[image for message in messages for image in message.images],
            needs=use.needs,
            ignored=[*self.ignored, *billing, *ignored, *unusable],
        )

    def _check(self) -> None:
        """Raise RequestError if a required field is missing."""

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

    @property
    def _budget(self) -> int | None:
        """The budget of thinking, for which there is also Puna's own field."""
        if self.thinking is None or self.thinking.budget_tokens is None or not self.thinks:
            return self.think_budget
        return self.thinking.budget_tokens

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
        """Return the use of tools, and sentences about ignored tools, which only Anthropic's servers have."""
        tools, unusable = [], []
        for place, tool in enumerate(self.tools):
            kind = tool.get("type") or "custom"
            if kind != "custom":
                unusable.append(
                    f"tools[{place}] is ignored: tools of the type {shown(kind)} are not supported"
                )
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


class MessagesRequest(CountRequest, ProgressField):
    """The body of `/v1/messages`."""

    max_tokens: int | None = None
    stop_sequences: Many[str] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None  # Puna's own

    def spec(self) -> GenerationSpec:
        """Return the generation request; unlike in OpenAI's API, absent options are the model's own."""
        given = {
            "num_predict": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": self.stop_sequences or None,
            **self.sampling(),
        }
        spec = self._spec({name: value for name, value in given.items() if value is not None})
        request = msgspec.structs.replace(spec.request, stream_calls=self.stream, progress=self.progress)
        return replace(spec, request=request)

    def _check(self) -> None:
        if self.max_tokens is None or self.max_tokens <= 0:
            raise RequestError("max_tokens is required and must be positive")
