"""Tools: which ones an answer may call, and the calls put together from an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from puna import gojson
from puna.chat.templates.messages import Chat, Message
from puna.errors import RequestError, shown
from puna.protocol import CallDelta, TokenLogprob
from puna.server.jobs.service import AnswerDelta

#: More tools fill the context of any model, and their grammars take long to compile.
MAX_TOOLS: Final = 1024
_LONGEST_NAME: Final = 256


@dataclass(frozen=True)
class ToolUse:
    """Which tools an answer may, or must, call; fields as in `Chat`."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: str = "auto"
    parallel: bool = True
    strict: bool = False

    def __post_init__(self) -> None:
        """Raises RequestError for a choice that none of the tools can satisfy."""
        if len(self.tools) > MAX_TOOLS:
            raise RequestError(f"at most {MAX_TOOLS:,} tools are allowed, not {len(self.tools):,}")
        kind, _, name = self.choice.partition(":")
        if kind == "required" and not self.tools:
            raise RequestError("tool_choice asks for a call, and the request has no tools to choose from")
        if kind == "function" and name not in self.names:
            raise RequestError(f"tool_choice names {shown(name)}, which is none of the request's tools")

    @property
    def names(self) -> set[str]:
        return {tool["function"]["name"] for tool in self.tools}

    @property
    def needs(self) -> list[str]:
        """Capabilities."""
        return ["tools"] if self.tools and self.choice != "none" else []

    def only(self, names: Sequence[str], choice: str) -> ToolUse:
        """Only the tools of these names. Raises RequestError for a name that none has."""
        for name in names:
            if name not in self.names:
                raise RequestError(f"tool_choice names {shown(name)}, which is none of the request's tools")
        tools = [tool for tool in self.tools if tool["function"]["name"] in names]
        return replace(self, tools=tools, choice=choice)

    def chat(self, messages: list[Message], documents: list[dict[str, Any]] | None = None) -> Chat:
        return Chat(
            messages=messages,
            tools=self.tools,
            tool_choice=self.choice,
            parallel_tool_calls=self.parallel,
            strict_tools=self.strict,
            documents=documents or [],
        )


def function(
    name: Any, description: Any, parameters: Any, where: str, strict: Any = None, **more: Any
) -> dict[str, Any]:
    """A tool, as `Chat` has it, from its parts. Raises RequestError naming which is wrong, and `where`.

    `more` are fields of the tool beside its function.
    """
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where} needs a name, which is a text, not {shown(name)}")
    if len(name) > _LONGEST_NAME:
        raise RequestError(f"{where}: a name has at most {_LONGEST_NAME} characters")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{where}: the description must be a text, not {shown(description)}")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError(f"{where}: parameters must be a JSON schema, which is an object")
    made: dict[str, Any] = {"name": name}
    if description is not None:
        made["description"] = description
    if parameters is not None:
        made["parameters"] = parameters
    if strict is not None:
        made["strict"] = bool(strict)
    return {"type": "function", **more, "function": made}


def chat_tools(given: Sequence[Mapping[str, Any]], where: str = "tools") -> list[dict[str, Any]]:
    """Tools as Ollama's and OpenAI's chats write them. Raises RequestError."""
    found = []
    for place, tool in enumerate(given):
        at = f"{where}[{place}]"
        kind = tool.get("type") or "function"
        described = tool.get("function")
        if kind != "function":
            raise RequestError(f"{at}: only tools of the type function can be used, not {shown(kind)}")
        if not isinstance(described, Mapping):
            raise RequestError(f"{at}.function is missing: it is an object with name and parameters")
        found.append(
            function(
                described.get("name"),
                described.get("description"),
                described.get("parameters"),
                f"{at}.function",
                described.get("strict"),
                **({"items": tool["items"]} if tool.get("items") is not None else {}),
            )
        )
    return found


def chat_choice(use: ToolUse, given: Any) -> ToolUse:
    """`use` with OpenAI's `tool_choice`, in the shape of its chats or of its responses. Raises RequestError.

    `{"type": "allowed_tools"}` leaves the others out.
    """
    match given:
        case None:
            return use
        case "auto" | "none" | "required":
            return replace(use, choice=given)
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return replace(use, choice=f"function:{name}")
        case {"type": "allowed_tools"}:
            inner = given.get("allowed_tools", given)
            if not isinstance(inner, Mapping) or inner.get("mode") not in ("auto", "required"):
                raise RequestError('tool_choice.mode must be "auto" or "required"')
            return use.only(_allowed(inner.get("tools")), inner["mode"])
    raise RequestError(
        'tool_choice must be "none", "auto", "required", a function ({"type": "function", ...}) '
        f'or {{"type": "allowed_tools", ...}}, not {shown(given)}'
    )


def _allowed(given: Any) -> list[str]:
    names = []
    for tool in given if isinstance(given, list) else [None]:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case {"type": "function", "name": str(name)}:
                names.append(name)
            case _:
                raise RequestError(
                    'tool_choice.tools must be a list of functions, as in [{"type": "function", ...}]'
                )
    return names


def called(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call of an earlier answer, as messages of a prompt have it. Raises RequestError.

    `arguments` are JSON text, or already an object.
    """
    if not isinstance(name, str):
        raise RequestError("invalid tool call: it needs a function with a name")
    if isinstance(arguments, str) or arguments is None:
        try:
            arguments = gojson.loads(arguments or "{}")
        except ValueError as error:
            raise RequestError(f"invalid tool call arguments: {error}") from error
        if not isinstance(arguments, dict):
            raise RequestError("invalid tool call arguments: they must be a JSON object, as a string")
    if not isinstance(arguments, dict):
        raise RequestError(f"invalid tool call arguments: {shown(arguments)} is no JSON text")
    return {
        "id": id if isinstance(id, str) else "",
        "function": {"name": name, "arguments": arguments},
    }


@dataclass(frozen=True)
class CompletedCall:
    """A tool call; `arguments` are JSON text, as the model wrote it."""

    index: int
    id: str
    name: str
    arguments: str

    def value(self) -> dict[str, Any] | None:
        """The arguments; None if they are no object, because the answer ended inside of them."""
        try:
            value = gojson.loads(self.arguments or "{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def text(self) -> str:
        """What a call that was never finished is shown as."""
        return self.name + self.arguments


class Calls:
    """Puts calls together. One is whole when anything else follows it, or the answer ends: then `flush`."""

    def __init__(self) -> None:
        self._first: CallDelta | None = None
        self._arguments: list[str] = []

    def feed(self, deltas: Sequence[CallDelta]) -> list[CompletedCall]:
        """The calls that are whole now."""
        whole: list[CompletedCall] = []
        for delta in deltas:
            if self._first is None or delta.index != self._first.index:
                whole += self.flush()
                self._first = delta
            self._arguments.append(delta.arguments)
        return whole

    def flush(self) -> list[CompletedCall]:
        """The call that was not yet told of, if there is one: nothing more belongs to it."""
        first, arguments = self._first, "".join(self._arguments)
        self._first, self._arguments = None, []
        return [] if first is None else [CompletedCall(first.index, first.id, first.name, arguments)]


Kind = Literal["thinking", "text", "call"]


@dataclass
class Segment:
    """One of them; a call has an id and a name, and its text are its arguments as far as they came."""

    number: int
    kind: Kind
    id: str = ""
    name: str = ""
    call_index: int = 0
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of a text

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """Those of a call; None if they are no object, because the answer ended inside of them."""
        return self._call.value()

    @property
    def unfinished(self) -> str:
        """What a call that was never finished is shown as, where its arguments must be whole."""
        return self._call.text

    @property
    def _call(self) -> CompletedCall:
        return CompletedCall(self.call_index, self.id, self.name, self.text)


@dataclass(frozen=True)
class SegmentDelta:
    """A segment begins, gets more `text`, or ends."""

    what: Literal["begin", "more", "end"]
    segment: Segment
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class Segments:
    """Splits one answer. Without `thinking`, what the model thinks is left out."""

    def __init__(self, *, thinking: bool = True) -> None:
        self.all: list[Segment] = []
        self._thinking = thinking
        self._open: Segment | None = None
        self._waiting: list[TokenLogprob] = []  # log-probabilities that came before their text

    @property
    def has_calls(self) -> bool:
        return any(segment.kind == "call" for segment in self.all)

    def feed(self, piece: AnswerDelta) -> Iterator[SegmentDelta]:
        if piece.thinking:
            if self._thinking:
                yield from self._more("thinking", piece.thinking)
        else:
            self._waiting += piece.logprobs
        if piece.text:
            yield from self._more("text", piece.text)
        for delta in piece.calls:
            yield from self._more("call", delta.arguments, delta)

    def finish(self) -> Iterator[SegmentDelta]:
        """The answer has ended."""
        if self._open is not None:
            yield SegmentDelta("end", self._open)
            self._open = None

    def _more(self, kind: Kind, text: str, call: CallDelta | None = None) -> Iterator[SegmentDelta]:
        here = self._open
        if here is None or here.kind != kind or (call is not None and call.index != here.call_index):
            yield from self.finish()
            here = Segment(len(self.all), kind)
            if call is not None:
                here.id, here.name, here.call_index = call.id, call.name, call.index
            self.all.append(here)
            self._open = here
            yield SegmentDelta("begin", here)
        logprobs: tuple[TokenLogprob, ...] = ()
        if kind == "text":
            logprobs, self._waiting = tuple(self._waiting), []
            here.logprobs += logprobs
        if text:
            here.parts.append(text)
            yield SegmentDelta("more", here, text, logprobs)
