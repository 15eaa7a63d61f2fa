"""Prompts written by Jinja templates, which differ in the form of a chat that they accept."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec
from jinja2 import nodes

from puna.chat.answers.family import tags_around
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import TEMPLATE, family_of
from puna.chat.templates.jinja import JinjaTemplate
from puna.chat.templates.messages import (
    ChatFormat,
    Message,
    SpecialTokens,
    SystemPlaces,
    Think,
    Traits,
    as_messages,
    call_function,
    has_later_system,
    settled,
    think_level,
)
from puna.errors import RequestError, TemplateError, TemplateRefusalError, TemplateRenderError, shown

#: The tool that is called in the chat by which a template is probed.
_PROBE_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "probe",
        "parameters": {"type": "object", "properties": {}},
    },
}

Chat = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None
Attempt = Callable[[Chat, Tools], str]

#: Marker, excluded marker and stop strings; the first match counts. A model's end-of-turn token ends its
#: answer anyway; these catch models that write the markers as ordinary text.
_STOPS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("<|im_start|>", None, ("<|im_start|>", "<|im_end|>")),
    ("<|start_header_id|>", None, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    ("<start_of_turn>", None, ("<start_of_turn>", "<end_of_turn>")),
    ("<|START_OF_TURN_TOKEN|>", None, ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")),
    ("<|end|>", "<|channel|>", ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")),
    ("<|role_end|>", None, ("<|role_end|>",)),
)

#: Ends a continued message while it is rendered; what the template writes after it is cut off.
_CONTINUED = "\ue000continued here\ue000"

#: Tags around thinking in known templates.
_THINKING_TAGS = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<mm:think>", "</mm:think>"),
    Tags("<think:opensource>", "</think:opensource>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("<|channel>thought", "<channel|>"),
)

#: Text from which templates of Hy make the closing tag of thinking, by a suffix that released models share.
_SUFFIXED: Final = "</think{}>"
_SUFFIX: Final = ":opensource"

#: Levels of thinking that templates name, from the least to the most, and those that mean none.
_LEVELS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_NO_LEVELS: Final = ("no_think", "none", "minimal")

#: Word that stops thinking if the system message has it, in templates without a variable for that.
_NO_THINK: Final = "/no_think"

#: Matches templates that recognise calls by missing content, to which "" would be an empty answer.
_NO_CONTENT: Final = re.compile(r"""\bcontent(["']\])? is (not )?none\s*-?%}""")

#: Matches templates that handle only one call in a message.
_FIRST_CALL: Final = re.compile(r"""tool_calls(["']\])?\[0\]""")

#: Matches templates that read results from the message with the calls.
_RESULTS_WITHIN: Final = re.compile(r"""[.\["'(]tool_responses\b""")

#: Types of JSON schemas that templates turn into types of a programming language.
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object")

#: Names under which templates look for thinking.
_THINKING: Final = ("reasoning_content", "reasoning", "thinking")

#: Characters of a tool call's id, for templates that insist on a length.
_SHORT_ID: Final = 9


def stop_strings(template: JinjaTemplate) -> tuple[str, ...]:
    """Return the stop strings for a template; none for an unknown one."""
    for marker, excluded, stops in _STOPS:
        if template.literal(marker) and not (excluded and template.literal(excluded)):
            return stops
    return ()


def call_tags(template: JinjaTemplate) -> Tags:
    """Return the tags around the calls that the first block about `tool_calls` writes."""
    waiting: list[nodes.Node] = [template.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.If) and _mentions_calls(node.test):
            return tags_around(_written(node.body))
        if isinstance(node, nodes.For) and _mentions_calls(node.iter):
            return tags_around(_written(node.body))
        waiting += reversed([*node.iter_child_nodes()])
    return Tags("", "")


def _mentions_calls(node: nodes.Node) -> bool:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Getattr) and node.attr == "tool_calls":
            return True
        if isinstance(node, nodes.Const) and node.value == "tool_calls":
            return True
        if isinstance(node, nodes.Not):
            continue
        waiting += node.iter_child_nodes()
    return False


def _written(body: list[nodes.Node]) -> Iterator[str]:
    """Yield the texts that may be written, regardless of conditions, in order."""
    waiting = body[::-1]
    while waiting:
        node = waiting.pop()
        match node:
            case nodes.TemplateData(data=text) | nodes.Const(value=str(text)):
                yield text
            case nodes.Output() | nodes.Concat() | nodes.Add() | nodes.For() | nodes.If():
                children = node.iter_child_nodes(exclude=("test", "iter", "target"))
                waiting += reversed([*children])


@dataclass(frozen=True)
class Wording:
    """A template's requirements for calls and their results, as its text shows them.

    `nothing` is the content of a message with calls only. `one_call`: a message has at most one call,
    followed by its result. `results_within`: results belong to the message with the calls.
    """

    nothing: str | None = ""
    one_call: bool = False
    results_within: bool = False

    @classmethod
    def of(cls, template: str) -> Wording:
        return cls(
            None if _NO_CONTENT.search(template) else "",
            _FIRST_CALL.search(template) is not None,
            _RESULTS_WITHIN.search(template) is not None,
        )

    def chat(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """Return the chat in this wording, message by message."""
        chat = [_message(message, self.nothing) for message in messages]
        if self.results_within:
            chat = _results_within(chat)
        return _one_call_each(chat, self.nothing) if self.one_call else chat


def _message(message: Message, nothing: str | None) -> dict[str, Any]:
    """Return one message, with thinking under each name in use."""
    content = message.content or (nothing if message.tool_calls else "")
    value: dict[str, Any] = {"role": message.role, "content": content}
    if message.thinking:
        value |= dict.fromkeys(_THINKING, message.thinking)
    if message.tool_calls:
        value["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_name:
        value["name"] = message.tool_name
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = call_function(call)
    value: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call["id"], **value} if call.get("id") else value


def _turns(chat: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each message, together with the tool results that directly follow its calls."""
    place = 0
    while place < len(chat):
        message, begin = chat[place], place + 1
        place += 1
        while "tool_calls" in message and place < len(chat) and chat[place]["role"] == "tool":
            place += 1
        yield message, chat[begin:place]


class _Results:
    """Results of calls: those with a call's id, and others that belong to the calls in order."""

    def __init__(self, results: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
        ids = {call.get("id") for call in calls} - {None}
        self._named: dict[str, dict[str, Any]] = {}
        self.others: deque[dict[str, Any]] = deque()
        for result in results:
            id: Any = result.get("tool_call_id")
            if id in ids and id not in self._named:
                self._named[id] = result
            else:
                self.others.append(result)

    def of(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """Remove and return the result of a call, if any."""
        if (found := self._named.pop(str(call.get("id")), None)) is not None:
            return found
        return self.others.popleft() if self.others else None


def _results_within(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move results into the message with the calls, under the names of their tools."""
    form: list[dict[str, Any]] = []
    for message, given in _turns(chat):
        if given:
            results = _Results(given, message["tool_calls"])
            pairs = [(call["function"]["name"], results.of(call)) for call in message["tool_calls"]]
            pairs += [(result.get("name", "unknown"), result) for result in results.others]
            responses = [{"name": name, "response": one["content"]} for name, one in pairs if one is not None]
            message = {**message, "tool_responses": responses}
        form.append(message)
    return form


def _one_call_each(chat: list[dict[str, Any]], nothing: str | None) -> list[dict[str, Any]]:
    """Give each call its own message, followed by its result, if any."""
    form: list[dict[str, Any]] = []
    for message, given in _turns(chat):
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            form += [message, *given]
            continue
        results = _Results(given, calls)
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": message["role"], "content": nothing}
            form.append({**said, "tool_calls": [call]})
            if (result := results.of(call)) is not None:
                form.append(result)
        form += results.others
    return form


def first_accepted(chat: Chat, tools: Tools, attempt: Attempt) -> str:
    """Return the text of the first form that the template accepts.

    If there is none, raise the template's own objection (`raise_exception`) if it has one, else the error of
    the first form, naming the message that caused it.
    """
    try:
        text = attempt(chat, tools)
    except TemplateError as error:
        refused = _Refused(error, chat, tools)
    else:
        return _with_typed_content(chat, lambda form: attempt(form, tools), text)
    for form, described in _others(chat, tools):
        try:
            return attempt(form, described)
        except TemplateError as error:
            if isinstance(error, TemplateRefusalError) and not refused.by_the_template:
                refused = _Refused(error, form, described)
    raise refused.located(len(chat), attempt)


def _others(chat: Chat, tools: Tools) -> Iterator[tuple[Chat, Tools]]:
    """Yield all other forms, the closest first; without tools, the last ones have an empty list of them."""
    tried = [(chat, tools)]
    for described in (tools, [simple_tool(tool) for tool in tools or ()]):
        form = chat
        for change in (None, *_CHANGES):
            form = form if change is None else change(form)
            for other in (form, _arguments_as_text(form)):
                if (other, described) not in tried:
                    tried.append((other, described))
                    yield other, described


class _Refused:
    """A form that a template did not accept, and its error."""

    def __init__(self, error: TemplateError, form: Chat, tools: Tools) -> None:
        self._error = error
        self._form = form
        self._tools = tools

    @property
    def by_the_template(self) -> bool:
        return isinstance(self._error, TemplateRefusalError)

    def located(self, count: int, attempt: Attempt) -> TemplateError:
        """Return the error with the message that first caused it. The chat has `count` messages."""

        def fails(first: int) -> bool:
            """Return whether the `first` messages alone cause the same error."""
            try:
                attempt(self._form[:first], self._tools)
            except TemplateError as error:
                return str(error) == str(self._error)
            return False

        last = bisect_left(range(len(self._form)), True, key=fails)
        if last == 0:
            return self._error  # not caused by a message
        number = f" {last}" if len(self._form) == count else ""
        role = shown(self._form[last - 1]["role"])
        return type(self._error)(f"{self._error} (about message{number} of the chat, role {role})")


def _with_typed_content(chat: Chat, attempt: Callable[[Chat], str], text: str) -> str:
    """Return `text`, or if it lacks the last message, the text for contents as lists of parts."""
    wanted = (chat[-1]["content"] or "").strip() if chat else ""
    if not wanted or wanted in text:
        return text
    typed = [{**message, "content": [{"type": "text", "text": message["content"] or ""}]} for message in chat]
    try:
        other = attempt(typed)
    except TemplateError:
        return text
    return other if wanted in other else text


def _arguments_as_text(chat: Chat) -> Chat:
    """Write arguments as JSON text, for templates that concatenate them instead of encoding them."""

    def changed(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}

    return [
        {**message, "tool_calls": [changed(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in chat
    ]


def _system_in_user(chat: Chat) -> Chat:
    """Move system texts into the first user message, for models without a system role."""
    system = "\n\n".join(message["content"] for message in chat if message["role"] == "system")
    rest = [message for message in chat if message["role"] != "system"]
    if not system:
        return chat
    first = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system}, *rest]
    merged = {**rest[first], "content": f"{system}\n\n{rest[first]['content']}"}
    return [*rest[:first], merged, *rest[first + 1 :]]


def _neighbours_merged(chat: Chat) -> Chat:
    """Merge neighbours of one role, for templates that insist on alternating turns or read only the last."""
    return [_merged(run) for run in _runs(chat, lambda last, role: role == last != "tool")]


def _runs(chat: Chat, belongs: Callable[[str, str], bool]) -> list[Chat]:
    """Split the chat into runs; `belongs` gets the role of a run's last message and of the next one."""
    runs: list[Chat] = []
    for message in chat:
        if runs and belongs(runs[-1][-1]["role"], message["role"]):
            runs[-1].append(message)
        else:
            runs.append([message])
    return runs


def _merged(run: Chat) -> dict[str, Any]:
    """Merge a run into one message with all its texts, thinking and calls."""
    if len(run) == 1:
        return run[0]
    made: dict[str, Any] = {}
    for message in run:
        made |= message
    for key in ("content", *_THINKING):
        if texts := [message[key] for message in run if message.get(key)]:
            made[key] = "\n\n".join(texts)
    if "tool_calls" in made:
        made["tool_calls"] = [call for message in run for call in message.get("tool_calls", ())]
    return made


def _said_as_thinking(chat: Chat) -> Chat:
    """Move text before a call into its thinking, for templates with only one place for both."""
    return [
        {**message, "content": "", **{key: f"{message[key]}\n\n{message['content']}" for key in _THINKING}}
        if message["content"] and "tool_calls" in message and all(key in message for key in _THINKING)
        else message
        for message in chat
    ]


def _nothing_left_out(chat: Chat) -> Chat:
    """Drop answers without text and calls, which some templates do not accept as turns."""
    return _neighbours_merged(
        [
            message
            for message in chat
            if message["role"] != "assistant" or message["content"] or "tool_calls" in message
        ]
    )


def _text_with_result(chat: Chat) -> Chat:
    """Append user texts to the result before them, for templates that refuse them right after one."""
    form: Chat = []
    for first, *texts in _runs(chat, lambda last, role: role == "user" and last in ("tool", "user")):
        if first["role"] == "tool":
            said = [first["content"], *(text["content"] for text in texts)]
            form.append({**first, "content": "\n\n".join(said)})
        else:
            form += [first, *texts]
    return form


def _short_ids(chat: Chat) -> Chat:
    """Give each call an id of nine letters and digits, on which some templates insist."""
    unanswered: dict[str, None] = {}
    count = 0

    def short(identifier: str) -> str:
        if len(identifier) == _SHORT_ID and identifier.isascii() and identifier.isalnum():
            return identifier
        return hashlib.blake2b(identifier.encode()).hexdigest()[:_SHORT_ID]

    form = []
    for message in chat:
        if "tool_calls" in message:
            calls = []
            for call in message["tool_calls"]:
                count += 1
                calls.append({**call, "id": short(call.get("id") or f"call {count}")})
            unanswered = dict.fromkeys(call["id"] for call in calls)
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            identifier = short(given) if given else next(iter(unanswered), short(""))
            unanswered.pop(identifier, None)
            message = {**message, "tool_call_id": identifier}
        form.append(message)
    return form


#: Applied cumulatively, in this order.
_CHANGES: Final = (
    _system_in_user,
    _neighbours_merged,
    _said_as_thinking,
    _nothing_left_out,
    _text_with_result,
    _short_ids,
)


def simple_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with every field that templates may expect, and without types they may not know.

    Some templates recurse endlessly on a type that they cannot name in a programming language, such as
    `null`: it becomes an open type, and is left out of a list of types.
    """
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    parameters = function.get("parameters")
    whole = {"type": "object", "properties": {}, **(parameters if isinstance(parameters, dict) else {})}
    described = {**function, "parameters": _simple_schema(whole)}
    described.setdefault("description", "")
    return {**tool, "function": described}


def _simple_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_simple_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    simple = {
        key: value if key in ("enum", "const", "default", "examples", "required") else _simple_schema(value)
        for key, value in schema.items()
    }
    if isinstance(schema.get("properties"), dict):
        simple["properties"] = {
            name: _described(_simple_schema(one)) for name, one in schema["properties"].items()
        }
    kinds = schema.get("type")
    if isinstance(kinds, list):
        known = [kind for kind in kinds if kind in _TYPES]
        simple["type"] = known[0] if len(known) == 1 else known or None
    elif isinstance(kinds, str) and kinds not in _TYPES:
        simple["type"] = None
    if simple.get("type") == "array" and not isinstance(simple.get("items"), dict):
        simple["items"] = {"type": None}
    if simple.get("type") == "object":
        simple.setdefault("additionalProperties", {"type": None})
    return simple


def _described(schema: Any) -> Any:
    """Complete a property with the description and type for which templates ask."""
    if not isinstance(schema, dict):
        return {"type": None, "description": ""}
    return {"type": None, "description": "", **schema}


class JinjaFormat(ChatFormat):
    """A Hugging Face chat template.

    Templates differ in what they accept. A template that refuses the usual form of a chat gets another one
    of the same meaning (`first_accepted`): arguments of tool calls as JSON text, the system text inside the
    first user message, neighbouring messages of one role merged, short ids of tool calls and the like; then
    all of these with simpler descriptions of the tools.

    System messages after the first turn stay where they are: as such where the template writes them in place,
    otherwise as words of the client (`settled`). At the front, each would make all of the prompt new.
    """

    def __init__(
        self, template: str, tokens: SpecialTokens | None = None, *, with_tools: str | None = None
    ) -> None:
        """Parse `template`, and `with_tools`, which replaces it whenever there are tools.

        Raises TemplateError.
        """
        self.template = template
        self._template = JinjaTemplate(template)
        self._with_tools = JinjaTemplate(with_tools) if with_tools else None
        self._tokens = tokens or SpecialTokens()
        self.wording = Wording.of(template)
        self._openings: dict[Think, str] = {}
        writing = self._with_tools or self._template
        family = family_of(writing.text, calls=writing.reads("tools"))
        self.traits = Traits(
            stop=stop_strings(self._template),
            thinking_tags=_thinking_tags(self._template),
            family=family.name,
            call_tags=call_tags(writing) if family is TEMPLATE else None,
            takes_tools=self._with_tools is not None or self._template.reads("tools"),
            takes_levels=self._template.reads("reasoning_effort"),
            takes_documents=self._template.reads("documents"),
            takes_values=True,
        )

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] = (),
        values: Mapping[str, Any] | None = None,
        think: Think = None,
        add_generation_prompt: bool = True,
        system_in_place: bool = False,
    ) -> str:
        given = as_messages(messages)
        if has_later_system(given) and not self._system_places.kept:
            given = settled(given, in_results=self._system_places.results)
        return self._written(
            given, tools, documents, think, values=values, add_generation_prompt=add_generation_prompt
        )

    def opening(self, think: Think = None) -> str:
        if think not in self._openings:
            asked = [Message(role="user", content="probe asks")]
            answered = [*asked, Message(role="assistant", content="probe answers"), *asked]
            try:
                prompt, later = (self._written(chat, None, think=think) for chat in (asked, answered))
            except (TemplateError, RequestError):
                prompt = later = ""
            same = next(
                (i for i, (a, b) in enumerate(zip(prompt, later, strict=False)) if a != b), len(prompt)
            )
            if ">" not in prompt[(begin := prompt.rfind("<", 0, same)) : same] and begin >= 0:
                same = begin  # within a special token
            self._openings = {think: prompt[same:]}  # requests to a model mostly have the same
        return self._openings[think]

    @cached_property
    def _system_places(self) -> SystemPlaces:
        return SystemPlaces.of(
            lambda probe: self._written(probe, [_PROBE_TOOL] if self.traits.takes_tools else None),
            calls=self.traits.takes_tools,
        )

    @cached_property
    def _reads_no_think(self) -> bool:
        """Whether `/no_think` in the system message, and no variable, stops thinking, as with Nemotron."""
        if not self._template.literal(_NO_THINK):
            return False
        probe = [{"role": "user", "content": "probe asks"}]
        given = {**self._tokens.spellings, "messages": probe, "tools": None, "add_generation_prompt": True}
        try:
            texts = {
                self._template.render({**_think_values(think, self._template), **given})
                for think in (False, True)
            }
        except TemplateError:
            return False
        return len(texts) == 1

    def _written(
        self,
        messages: Sequence[Message],
        tools: Iterable[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
        *,
        values: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt, with system messages where the template puts them."""
        if think is not None and not think and self._reads_no_think:
            messages = _with_no_think(messages)
        chat = self.wording.chat(messages)
        given_tools = [dict(tool) for tool in tools or ()] or None
        template = self._with_tools if given_tools and self._with_tools else self._template
        continues = bool(chat) and _is_continued(chat[-1])

        def attempt(form: Chat, tools: Tools) -> str:
            variables: dict[str, Any] = {
                **_think_values(think, template),
                **(values or {}),
                **self._tokens.spellings,
                "messages": form,
                "tools": tools,
                "documents": [dict(document) for document in documents] or None,
                "add_generation_prompt": add_generation_prompt and not continues,
            }
            text = template.render(variables)
            if not continues:
                return text
            before, found, _ = text.rpartition(_CONTINUED)
            if not found:
                raise TemplateRenderError("template error: the last message does not appear in the prompt")
            return before

        if continues:
            chat[-1] = {**chat[-1], "content": chat[-1]["content"] + _CONTINUED}
        text = first_accepted(chat, given_tools, attempt)
        bos = self._tokens.spellings.get("bos_token", "")
        return text.removeprefix(bos) if self._tokens.adds_bos and bos else text


def _is_continued(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and bool(message["content"]) and "tool_calls" not in message


def _with_no_think(messages: Sequence[Message]) -> list[Message]:
    instructed = bool(messages) and messages[0].role == "system"
    first = messages[0] if instructed else Message(role="system")
    told = msgspec.structs.replace(first, content=f"{first.content}\n{_NO_THINK}".strip())
    return [told, *(messages[1:] if instructed else messages)]


def _think_values(think: Think, template: JinjaTemplate) -> dict[str, Any]:
    """Return the switches that templates read; none if the template is to decide."""
    if think is None:
        return {}
    level = _level(think, template)
    return {
        "enable_thinking": bool(think),
        "thinking": bool(think),
        "reasoning": bool(think),
        # MiniMax M3 decides for itself by default.
        "thinking_mode": "enabled" if isinstance(think, str) else "adaptive" if think else "disabled",
        **({"reasoning_effort": level} if level else {}),
        **({} if think else {"thinking_budget": 0}),  # Seed-OSS
    }


def _level(think: Think, template: JinjaTemplate) -> str:
    """Return the level of `think`, or of those that the template accepts the next higher, else the highest.

    Without thinking, it is one that means none, if the template compares levels with it; else empty.
    """
    if not think:
        known = template.compared("reasoning_effort")
        return next((level for level in _NO_LEVELS if level in known), "")
    levels = template.accepted("reasoning_effort")
    level = think_level(think)
    known = [one for one in _LEVELS if one in levels]
    if level in levels or level not in _LEVELS or not known:
        return level
    higher = [one for one in known if _LEVELS.index(one) > _LEVELS.index(level)]
    return higher[0] if higher else known[-1]


def _thinking_tags(template: JinjaTemplate) -> Tags | None:
    if template.literal(_SUFFIXED):
        suffix = _SUFFIX if template.literal(_SUFFIX) else ""
        return Tags(f"<think{suffix}>", f"</think{suffix}>")
    return next((tags for tags in _THINKING_TAGS if template.literal(tags.closing)), None)
