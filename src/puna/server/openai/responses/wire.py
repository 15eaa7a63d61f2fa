"""Request bodies of the Responses API, read into generation requests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

import msgspec.structs
from pydantic import Field

from puna.chat.templates.messages import Message
from puna.errors import RequestError, UnavailableError, shown
from puna.grammar.format import Format
from puna.server.http.bodies import MAX_MESSAGES, Body, Many, Name
from puna.server.jobs.documents import File
from puna.server.jobs.images import from_input_audio, from_url
from puna.server.jobs.jobs import GenerationSpec
from puna.server.jobs.own_fields import (
    ChatFields,
    OwnFields,
    ProgressField,
    SamplingFields,
    only_one,
    with_images,
)
from puna.server.jobs.tools import ToolUse, called, chat_choice, function
from puna.server.openai.wire import response_format, think

Item = dict[str, Any]

#: Prefixes of the ids of items, by their types.
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


def input_items(given: Any) -> list[Item]:
    """Return a request's `input` as items, each with an id. Raises RequestError."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    if not isinstance(given, list) or not given:
        raise RequestError("input must be a string or a list of items, and not empty")
    if len(given) > MAX_MESSAGES:
        raise RequestError(f"input: more than {MAX_MESSAGES:,} items")
    return [_with_id(item, f"input[{place}]") for place, item in enumerate(given)]


def _with_id(item: Any, where: str) -> Item:
    if not isinstance(item, dict):
        raise RequestError(f"{where} must be an object, not {shown(item)}")
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind is None:
        raise RequestError(f"{where}: input item missing required 'type' field")
    made = {**item, "type": kind}
    if kind == "message" and isinstance(item.get("content"), str):
        text = "output_text" if item.get("role") == "assistant" else "input_text"
        made["content"] = [{"type": text, "text": item["content"]}]
    if not isinstance(item.get("id"), str) or not item["id"]:
        made["id"] = f"{PREFIXES.get(str(kind), 'item')}_{secrets.token_hex(18)}"
    return made


def files(items: Sequence[Item]) -> Iterator[File]:
    """Yield the files of items, whose text must be read before there are `prompt_messages`."""
    for place, item in enumerate(items):
        for name in ("content", "output"):
            for number, part in enumerate(item[name] if isinstance(item.get(name), list) else ()):
                match part:
                    case {"type": "input_file", "file_data": str(data)}:
                        where = f"input[{place}].{name}[{number}]"
                        yield File.of_data(where, data, partial(_put_text, part))


def _put_text(part: dict[str, Any], text: str) -> None:
    name = part.get("filename")
    part.clear()
    part.update(type="input_text", text=f"{name}\n\n{text}" if isinstance(name, str) and name else text)


def resolved(items: Sequence[Item], find: Callable[[str], Item]) -> list[Item]:
    """Return `items` with references replaced by the items that `find` returns for their ids."""
    return [find(item["id"]) if item["type"] == "item_reference" else item for item in items]


def prompt_messages(items: Sequence[Item]) -> list[Message]:
    """Return the messages of the prompt. Raises RequestError.

    The thinking, text and calls of an answer become one message of the assistant.
    """
    reader = _Reader()
    for place, item in enumerate(items):
        reader.read(item, f"input[{place}]")
    return reader.messages()


class _Reader:
    """Reader of items, one after the other."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._names: dict[str, str] = {}  # of called functions, by the id of the call
        self._thinking: list[str] = []  # of the next message of the assistant
        self._calls: list[dict[str, Any]] = []  # of the last message of the assistant

    def messages(self) -> list[Message]:
        if self._thinking:
            self._add(Message(role="assistant"))
        return self._messages

    def read(self, item: Item, where: str) -> None:
        match item["type"]:
            case "message":
                self._message(item, where)
            case "function_call":
                self._call(item)
            case "function_call_output":
                self._output(item, where)
            case "reasoning":
                self._thinking.append(_thought(item))
            case kind:
                raise RequestError(f"{where}: unknown input item type: {shown(kind)}")

    def _message(self, item: Item, where: str) -> None:
        role = str(item.get("role") or "").lower()
        role = "system" if role == "developer" else role
        if role not in ("user", "assistant", "system"):
            raise RequestError(
                f"{where}.role must be user, assistant, system or developer, not {shown(role)}"
            )
        message = _content(role, item.get("content"), where)
        if role == "assistant" and self._messages and self._messages[-1].tool_calls:
            self._extend_last(message)
        else:
            self._add(message)

    def _add(self, message: Message) -> None:
        if message.role == "assistant":
            self._calls = []
            thinking = "".join(self._thinking)
            message = msgspec.structs.replace(message, thinking=thinking, tool_calls=self._calls)
            self._thinking = []
        self._messages.append(message)

    def _call(self, item: Item) -> None:
        identifier = item.get("call_id")
        call = called(identifier, item.get("name"), item.get("arguments"))
        self._names[call["id"]] = call["function"]["name"]
        if not self._messages or self._messages[-1].role != "assistant":
            self._add(Message(role="assistant"))
        elif self._thinking:
            self._extend_last(Message(role="assistant"))
        self._calls.append(call)

    def _extend_last(self, message: Message) -> None:
        """Add text between calls, or between calls and their outputs, to the message with the calls."""
        last = self._messages[-1]
        self._messages[-1] = msgspec.structs.replace(
            last,
            content=last.content + message.content,
            thinking=last.thinking + "".join(self._thinking),
            images=[*last.images, *message.images],
        )
        self._thinking = []

    def _output(self, item: Item, where: str) -> None:
        identifier = item.get("call_id")
        if not isinstance(identifier, str):
            raise RequestError(f"{where}: function_call_output missing required 'call_id' field")
        message = _content("tool", item.get("output"), f"{where}.output")
        self._messages.append(
            msgspec.structs.replace(
                message, tool_call_id=identifier, tool_name=self._names.get(identifier, "")
            )
        )


def _content(role: str, content: Any, where: str) -> Message:
    """Return one message with all parts of an item's content."""
    if isinstance(content, str) or content is None:
        return Message(role=role, content=content or "")
    if not isinstance(content, list):
        raise RequestError(f"{where}: content must be a string or a list of parts")
    parts = with_images([_part(role, part, f"{where}.content[{i}]") for i, part in enumerate(content)])
    images = [image for part in parts for image in part.images]
    return Message(role=role, content="".join(part.content for part in parts), images=images)


def _part(role: str, part: Any, where: str) -> Message:
    match part:
        case {"type": "input_text" | "output_text" | "text" | "summary_text", "text": str(text)}:
            return Message(role=role, content=text)
        case {"type": "refusal", "refusal": str(text)}:
            return Message(role=role, content=text)
        case {"type": "input_image"}:
            url = part.get("image_url")
            if not isinstance(url, str):
                raise RequestError(f"{where}: input_image needs an image_url; files are not supported")
            return Message(role=role, images=[from_url(url)])
        case {"type": "input_file"}:
            raise UnavailableError(
                f"{where}: a file must be given by its file_data, in base64: the server keeps no files"
            )
        case {"type": "input_audio"}:
            return Message(role=role, images=[from_input_audio(part.get("input_audio"), where)])
        case {"type": kind}:
            raise RequestError(f"{where}: unknown content type: {shown(kind)}")
    raise RequestError(f"{where} must be an object with a type")


def _thought(item: Item) -> str:
    """Return the thinking of an item: the original, or else its summary."""
    if isinstance(given := item.get("encrypted_content"), str) and given:
        return given
    parts = item.get("content") or item.get("summary") or []
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "".join(text for text in texts if isinstance(text, str))


#: The only value of `include` with an effect here.
LOGPROBS: Final = "message.output_text.logprobs"

#: Maximum pairs of metadata, and characters of a name and of a value.
_MAX_METADATA: Final = 16
_LONGEST_KEY: Final = 64
_LONGEST_VALUE: Final = 512

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=_LONGEST_KEY)], Annotated[str, Field(max_length=_LONGEST_VALUE)]],
    Field(max_length=_MAX_METADATA),
]


class TextConfig(Body):
    format: dict[str, Any] | None = None
    verbosity: Any = None


class ReasoningConfig(Body):
    effort: str = ""
    summary: Any = None
    generate_summary: Any = None


class ResponsesRequest(OwnFields, ProgressField, ChatFields, SamplingFields):
    """The body of `/v1/responses`."""

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
    metadata: Metadata = Field(default_factory=dict)
    background: bool = False
    conversation: Any = None
    prompt: Any = None
    # Fields without effect on answers here.
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

    @property
    def conversation_id(self) -> str:
        """The id of the conversation to continue; empty for none. Raises RequestError."""
        given = self.conversation
        id = given.get("id") if isinstance(given, dict) else given
        if id is not None and not isinstance(id, str):
            raise RequestError("conversation must be the id of a conversation, or an object with an id")
        if id and self.previous_response_id:
            raise RequestError("conversation and previous_response_id exclude each other: give one of them")
        return id or ""

    def spec(self, items: Sequence[Item]) -> GenerationSpec:
        """Return the generation request for a conversation. Raises RequestError, UnavailableError."""
        if self.prompt:
            raise UnavailableError("prompt is not available in this version of the Responses API")
        if self.background and not self.store:
            raise RequestError("background needs store: a response in the background is kept until asked for")
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
                progress=self.progress,
                stream_calls=self.stream,
            ),
            prompts=[self.chat(use, messages)],
            options=self._options(),
            think=think(self.reasoning.effort),
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
        """Return the use of tools, and sentences about ignored tools, which only OpenAI's servers have."""
        tools, unusable = [], []
        for place, tool in enumerate(self.tools):
            if (kind := tool.get("type")) != "function":
                unusable.append(
                    f"tools[{place}] is ignored: tools of the type {shown(kind)} are not supported"
                )
                continue
            # Some clients send tools in the form of chats.
            given = tool["function"] if isinstance(tool.get("function"), dict) else tool
            tools.append(
                function(
                    given.get("name"),
                    given.get("description"),
                    given.get("parameters"),
                    f"tools[{place}]",
                    given.get("strict"),
                )
            )
        strict = any(tool["function"].get("strict") for tool in tools)
        return chat_choice(replace(ToolUse(tools), strict=strict), self.tool_choice), unusable
