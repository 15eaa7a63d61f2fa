"""Tools that an answer may call, read from each API's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from puna import gojson
from puna.chat.templates.messages import Chat, Message
from puna.errors import RequestError, shown

#: More tools would fill the context of any model, and compiling their grammar would take long.
MAX_TOOLS: Final = 1024
_LONGEST_NAME: Final = 256


@dataclass(frozen=True)
class ToolUse:
    """The tools that an answer may or must call, with fields as in `Chat`."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: str = "auto"
    parallel: bool = True
    strict: bool = False

    def __post_init__(self) -> None:
        """Raise RequestError for a choice that no tool can satisfy."""
        if len(self.tools) > MAX_TOOLS:
            raise RequestError(f"at most {MAX_TOOLS:,} tools are allowed, not {len(self.tools):,}")
        kind, _, name = self.choice.partition(":")
        if kind == "required" and not self.tools:
            raise RequestError("tool_choice requires a call, but the request has no tools")
        if kind == "function" and name not in self.names:
            raise RequestError(f"tool_choice names {shown(name)}, which is not one of the request's tools")

    @property
    def names(self) -> set[str]:
        return {tool["function"]["name"] for tool in self.tools}

    @property
    def needs(self) -> list[str]:
        """The capabilities that the model needs."""
        return ["tools"] if self.tools and self.choice != "none" else []

    def only(self, names: Sequence[str], choice: str) -> ToolUse:
        """Return a copy with only the tools of these names. Raises RequestError for an unknown name."""
        for name in names:
            if name not in self.names:
                raise RequestError(
                    f"tool_choice names {shown(name)}, which is not one of the request's tools"
                )
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
    """Return a tool in the form of `Chat`. Raises RequestError naming the wrong part and `where` it is.

    `more` are fields of the tool beside its function.
    """
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where} needs a name, which must be a string, not {shown(name)}")
    if len(name) > _LONGEST_NAME:
        raise RequestError(f"{where}: a name has at most {_LONGEST_NAME} characters")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{where}: the description must be a string, not {shown(description)}")
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
    """Return tools given in the form of Ollama's and OpenAI's chats. Raises RequestError."""
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
    """Return `use` with OpenAI's `tool_choice`, in the form of its chats or responses. Raises RequestError.

    `{"type": "allowed_tools"}` leaves out all other tools.
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
    """Return a tool call of an earlier answer in the form of prompt messages. Raises RequestError.

    `arguments` are JSON text or already an object.
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
        raise RequestError(f"invalid tool call arguments: {shown(arguments)} is not JSON text")
    return {
        "id": id if isinstance(id, str) else "",
        "function": {"name": name, "arguments": arguments},
    }
