"""Fields that request bodies of several APIs share, most of them beyond Ollama's and OpenAI's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec.structs
from pydantic import Field

from puna.chat.templates.messages import PLACE, Chat, Message
from puna.errors import RequestError, UnavailableError, shown
from puna.grammar.format import Format
from puna.options import AdapterScale
from puna.protocol import Generate, Priority
from puna.server.http.bodies import LONGEST_NAME, Adapters, Body, Documents, Many
from puna.server.jobs.documents import File
from puna.server.jobs.images import from_input_audio, from_url
from puna.server.jobs.tools import ToolUse, called


class StructuredOutputs(Body):
    """vLLM's `structured_outputs`, which has one of these fields."""

    json_: Any = Field(default=None, alias="json")
    regex: Any = None
    choice: Any = None
    grammar: Any = None
    json_object: bool = False


class LoraField(Body):
    """An adapter and its scale, as in llama.cpp's server; here it may also be given by name."""

    id: int | None = None
    name: str | None = Field(default=None, max_length=LONGEST_NAME)
    scale: float = 1.0


class AdapterFields(Body):
    """The adapters to compute with; without the field, those of the model."""

    lora: Adapters[LoraField] | None = None

    @property
    def adapters(self) -> list[AdapterScale] | None:
        if self.lora is None:
            return None
        return [AdapterScale(each.id, each.name, each.scale) for each in self.lora]


class OwnFields(AdapterFields):
    """Puna's own fields of generations in all APIs."""

    cache_prompt: bool = True
    priority: Priority = "interactive"
    ignore_eos: bool = False  # as in vLLM and llama.cpp
    sampled_logprobs: bool = False
    think_budget: int | None = None  # maximum tokens of thinking

    # The format of the answer: llama.cpp's field, and vLLM's.
    grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: StructuredOutputs = StructuredOutputs()

    def formats(self) -> dict[str, Format]:
        """Return the requested formats by field. Raises `RequestError`."""
        structured = self.structured_outputs
        fields = (
            ("grammar", self.grammar, Format.grammar),
            ("guided_json", self.guided_json, Format.json_schema),
            ("guided_regex", self.guided_regex, Format.regex),
            ("guided_choice", self.guided_choice, Format.choice),
            ("guided_grammar", self.guided_grammar, Format.grammar),
            ("structured_outputs.json", structured.json_, Format.json_schema),
            ("structured_outputs.regex", structured.regex, Format.regex),
            ("structured_outputs.choice", structured.choice, Format.choice),
            ("structured_outputs.grammar", structured.grammar, Format.grammar),
        )
        found = {}
        for name, value, read in fields:
            if value is None or value == "":
                continue
            try:
                found[name] = read(value)
            except RequestError as error:
                raise RequestError(f"{name}: {error}") from None
        if structured.json_object:
            found["structured_outputs.json_object"] = Format.json_object()
        return found

    def request(self, **more: Any) -> Generate:
        """Return the request with these fields and `more`; its prompt and options depend on the model."""
        more.setdefault("think_budget", self.think_budget)
        return Generate(
            cache_prompt=self.cache_prompt,
            priority=self.priority,
            ignore_eos=self.ignore_eos,
            sampled_logprobs=self.sampled_logprobs,
            lora=self.adapters,
            **more,
        )


class ProgressField(Body):
    """llama.cpp's field for streams that include the progress of the load and the prompt."""

    return_progress: bool = False
    stream: bool

    @property
    def progress(self) -> bool:
        return self.return_progress and self.stream

    @property
    def ignored(self) -> list[str]:
        without_stream = (
            ["return_progress is ignored without stream"] if self.return_progress and not self.stream else []
        )
        return super().ignored + without_stream


class SamplingFields(Body):
    """Options of the native API that other APIs lack; llama.cpp uses the same names."""

    top_k: Any = None
    min_p: Any = None
    typical_p: Any = None
    repeat_last_n: Any = None
    repeat_penalty: Any = None
    banned_tokens: Any = None
    min_tokens: Any = None
    top_n_sigma: Any = None
    xtc_probability: Any = None
    xtc_threshold: Any = None
    dynatemp_range: Any = None
    dynatemp_exponent: Any = None
    dry_multiplier: Any = None
    dry_base: Any = None
    dry_allowed_length: Any = None
    dry_penalty_last_n: Any = None
    dry_sequence_breakers: Any = None
    mirostat: Any = None
    mirostat_tau: Any = None
    mirostat_eta: Any = None
    engine: Any = None

    def sampling(self) -> dict[str, Any]:
        """Return the options that are given."""
        found = {name: getattr(self, name) for name in SamplingFields.model_fields}
        return {name: value for name, value in found.items() if value is not None}


#: Maximum variables of a template that a request sets, and characters of a variable's name.
MAX_TEMPLATE_VALUES: Final = 64
_LONGEST_VARIABLE: Final = 100

#: Variables of templates that requests set by other fields, if at all.
_RESERVED_VARIABLES: Final = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
)


def template_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `chat_template_kwargs`. Raises RequestError for names that it must not have, and too many."""
    name = "chat_template_kwargs"
    if len(given) > MAX_TEMPLATE_VALUES:
        raise RequestError(f"{name} may have {MAX_TEMPLATE_VALUES} names, not {len(given):,}")
    for variable in given:
        if variable in _RESERVED_VARIABLES:
            raise RequestError(f"{name} must not set {variable}: other fields of the request do")
        if not variable.isidentifier() or len(variable) > _LONGEST_VARIABLE:
            raise RequestError(f"{name}: {shown(variable)} is not a name of a variable")
    for switch in ("enable_thinking", "thinking"):
        if not isinstance(given.get(switch, False), bool):
            raise RequestError(f"{name}.{switch} must be a boolean, not {shown(given[switch])}")
    return dict(given)


class ChatFields(Body):
    """Fields of chats: those of OpenAI's API that Ollama's lacks, and Puna's own."""

    tool_choice: Any = None
    parallel_tool_calls: bool = True
    strict_tools: bool = False  # all calls are valid by construction, as with OpenAI's strict functions
    documents: Documents = Field(default_factory=list)  # named as in transformers and vLLM
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)  # as in llama.cpp and vLLM

    def chat(self, use: ToolUse, messages: list[Message]) -> Chat:
        """Return the chat; `use` has the request's other settings for tools."""
        parallel, strict = self.parallel_tool_calls and use.parallel, self.strict_tools or use.strict
        chat = replace(use, parallel=parallel, strict=strict).chat(messages, self.documents)
        return msgspec.structs.replace(chat, values=template_values(self.chat_template_kwargs))


def only_one(formats: Mapping[str, Format]) -> Format | None:
    """Return the only format of a request, or None without one. Raises `RequestError` for several."""
    if len(formats) > 1:
        raise RequestError(f"an answer can have one format: use only one of {', '.join(formats)}")
    return next(iter(formats.values()), None)


def texts_or_tokens(given: Any) -> list[str | list[int]] | None:
    """Return a prompt or input of OpenAI's API as a list: a text, token ids, or several of one kind.

    Returns None for anything else, including an empty list.
    """
    if isinstance(given, str) or _are_ints(given):
        return [given]
    if not isinstance(given, list) or not given:
        return None
    one_kind = all(isinstance(one, str) for one in given) or all(_are_ints(one) for one in given)
    return list(given) if one_kind else None


def _are_ints(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


class ChatMessage(Body):
    role: str = ""
    content: Any = None
    name: str = ""
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: Many[dict[str, Any]] = Field(default_factory=list)
    tool_call_id: str = ""
    function_call: dict[str, Any] | None = None  # the former field for a single call

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls in the form of prompt messages. Raises RequestError."""
        found = [*self.tool_calls, *([{"function": self.function_call}] if self.function_call else [])]
        return [_tool_call(call) for call in found]


def prompt_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return the messages of the prompt. Raises RequestError."""
    names = _called_names(messages)
    return [part for message in messages for part in _messages(message, names)]


def _messages(message: ChatMessage, names: Mapping[str, str]) -> list[Message]:
    """Return the prompt messages of a request's message, one for each part if its content is a list.

    `names` are the names of called functions by the id of the call.
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
    """Merge `parts` into one message if there are images among them, with each image at its place."""
    if not any(part.images for part in parts) or any(PLACE in part.content for part in parts):
        return parts
    content = "".join(PLACE if part.images else part.content for part in parts)
    images = [image for part in parts for image in part.images]
    return [msgspec.structs.replace(parts[0], content=content, images=images)]


def files(messages: Sequence[ChatMessage]) -> Iterator[File]:
    """Yield the files of messages, whose text must be read before there are `prompt_messages`."""
    for place, message in enumerate(messages):
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            match part:
                case {"type": "file", "file": {"file_data": str(data)}}:
                    yield File.of_data(f"messages[{place}].content[{number}]", data, partial(_put_text, part))


def _put_text(part: dict[str, Any], text: str) -> None:
    name = part["file"].get("filename")
    part.clear()
    part.update(type="text", text=f"{name}\n\n{text}" if isinstance(name, str) and name else text)


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
    if kind == "file":
        raise UnavailableError("a file must be given by its file_data, in base64: the server keeps no files")
    if kind == "input_audio":
        return Message(role=role, images=[from_input_audio(part.get("input_audio"))])
    raise RequestError(f"invalid message format: a part has the unknown type {kind!r}")


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        raise RequestError("invalid tool call: it needs a function with a name")
    return called(call.get("id"), function.get("name"), function.get("arguments"))


def _called_names(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """Return the names of called functions by the id of the call."""
    return {
        identifier: function["name"]
        for message in messages
        for call in message.tool_calls
        if isinstance(identifier := call.get("id"), str)
        and isinstance(function := call.get("function"), dict)
        and isinstance(function.get("name"), str)
    }
