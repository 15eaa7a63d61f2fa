"""Markup that is broken, truncated or only apparent is text, unchanged."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from puna.chat.answers.family import AnswerParser
from puna.chat.answers.parts import CallDelta
from puna.chat.answers.registry import FAMILIES
from tests.chat.answers.reading import THINK, TOOLS, cut, read, reading, tool
from tests.chat.answers.vectors import TIME, VECTORS, Vector, hy, m3

#: Texts without thinking that must come through unchanged, by family.
LOOKALIKES = [
    ("hermes", "Use <tool_call> to call."),
    ("hermes", "<tool_call>not JSON</tool_call> and more"),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": 01}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
    ("hermes", "a < b, <tool, <tool_cal"),
    ("hermes", "  \n<tool_call>  \n x"),
    ("hermes", "<tool_call>" * 30),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": ' + "[" * 300),
    ("qwen3-coder", "<tool_call>\n<function=get_time>\n<parameter=a>\nx\n</function>\n</tool_call>"),
    ("qwen3-coder", "Write <function=NAME> first, then <parameter=x>."),
    ("glm", "<tool_call>get_time\n<arg_key>a</arg_key>\nb</tool_call>"),
    (
        "minimax",
        '<minimax:tool_call>\n<invoke name="get_time">\n<param>1</param></invoke></minimax:tool_call>',
    ),
    ("minimax-m3", m3('<tool_call>\n<invoke name="get_time"><a>1</b></invoke>\n</tool_call>')),
    ("minimax-m3", m3('<tool_call><invoke name="get_time">') + "<a>1</a>" + m3("</invoke></tool_call>")),
    ("minimax-m3", m3('<tool_call><invoke name="get_weather"><hours><x>1</x></hours></invoke></tool_call>')),
    ("minimax-m3", m3('<tool_call><invoke name="nobody">' + "<a>" * 110)),
    ("minimax-m3", m3("<tool_call>") + "{}"),
    ("hy3", hy("<tool_calls><tool_call>get_time<tool_sep>\n<arg_key>a</arg_key>\nb</tool_call>")),
    ("hy3", "<tool_calls>\n<tool_call>get_time<tool_sep>\n</tool_call>\n</tool_calls>"),
    ("hy4", hy("Use <tool_call> for <tool_calls>.")),
    ("ling3", "<tool_call>get_time\n<arg_key>a</arg_key>\nb</tool_call>"),
    ("mistral", "[TOOL_CALLS]get_time(1)"),
    ("mistral-old", "[TOOL_CALLS] [1, 2]"),
    ("deepseek-v3", "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>[]<｜tool▁call▁end｜>",
    ),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0 {}"),
    ("llama3", '{"name": "get_time"}'),
    ("llama3", '{"name": "get_time", "parameters": 3}'),
    ("llama3", '{"get_time": {}}'),
    ("llama3", "<|python_tag|>import os"),
    ("llama4", "[get_time] is a tool"),
    ("llama4", "[nobody(a=1)]"),
    ("llama4", "[get_time(a=x)]"),
    ("lfm2", "<|tool_call_start|>[get_time(1)]<|tool_call_end|>"),
    ("olmo3", "<function_calls>get time()</function_calls>"),
    ("gemma4", "<|tool_call>call:get_time{a:}<tool_call|>"),
    ("granite", "<|tool_call|>[]"),
    ("command-r", "Action: ```json\nnone\n```"),
    ("command-r", "Action: run it"),
    ("functools", "import functools\n\n@functools.cache"),
    ("functools", 'functools[{"name": "get_time"'),
    ("template", '{"name": "get_time"}\n{"a": 1}'),
    ("functionary-v3.1", "<function=get_time>x</function>"),
    ("apertus", '<|tools_prefix|>["get_time"]<|tools_suffix|>'),
    ("harmony", "<|channel|>commentary to=functions.get_time<|message|>[1]"),
    ("harmony", "<|channel|>anal"),
]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("family", "answer"), LOOKALIKES)
def test_text_that_only_looks_like_a_call_stays_unchanged(family: str, answer: str, streams: bool) -> None:
    how = reading(family, streams_calls=streams)
    whole = read(how, [answer])
    if not streams:
        assert (whole.text, whole.calls) == (answer, [])
    places = range(1, len(answer), 1 + len(answer) // 200)
    for pieces in (list(answer), *(cut(answer, [place]) for place in places)):
        found = read(how, pieces)
        assert (found.text, found.calls) == (whole.text, whole.calls)


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_a_truncated_answer_has_no_call_from_a_fragment(vector: Vector) -> None:
    """Wherever the answer is cut, its calls are those of the whole answer, in order, and the rest is text."""
    how = reading(vector.family, **vector.options)
    most = 0
    for place in range(len(vector.answer)):
        found = read(how, [vector.answer[:place]], complete=False)
        assert found.calls == vector.calls[: len(found.calls)]
        assert len(found.calls) >= most
        most = len(found.calls)
        assert found.thinking in vector.answer
        if vector.family == "glimmer":
            assert found.calls or found.thinking + found.text == glimmer_text(vector.answer[:place])
        elif not found.calls and vector.family != "harmony" and not FAMILIES[vector.family].dropped:
            assert found.text in vector.answer
            if not vector.options:
                assert found.text == vector.answer[:place]


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.calls], ids=str)
def test_a_truncated_call_streams_a_prefix_of_its_arguments(vector: Vector) -> None:
    how = reading(vector.family, streams_calls=True, **vector.options)
    for place in range(len(vector.answer)):
        found = read(how, list(vector.answer[:place]), complete=False)
        for (name, arguments), (wanted, whole) in zip(found.calls, vector.calls, strict=False):
            assert name == wanted
            assert whole.startswith(arguments)


def test_arguments_are_streamed_as_soon_as_they_are_certain() -> None:
    for family, before, after in (
        ("hermes", '<tool_call>{"name": "write", "arguments": {"text": "', "abc"),
        ("qwen3-coder", "<tool_call>\n<function=write>\n<parameter=text>\n", "abc"),
        ("glm", "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>", "abc"),
        ("hy4", hy("<tool_calls><tool_call>write<arg_key>text</arg_key><arg_value>"), "abc"),
        ("minimax-m3", m3('<tool_call>\n<invoke name="write"><text>'), "abc"),
        ("minimax-m3", m3('<tool_call>\n<invoke name="tag"><names><item>u</item><item>'), "abc"),
        ("lfm2", "<|tool_call_start|>[write(text='", "abc"),
        ("mistral", '[TOOL_CALLS]write[ARGS]{"text": "', "abc"),
        ("harmony", '<|channel|>commentary to=functions.write<|message|>{"text": "', "abc"),
    ):
        tag = tool("tag", names={"type": "array", "items": {"type": "string"}})
        parser = AnswerParser(reading(family, tools=[*TOOLS, tag], streams_calls=True))
        parser.feed(before)
        for letter in after:
            parts = parser.feed(letter)
            text = "".join(part.arguments for part in parts if isinstance(part, CallDelta))
            assert text.endswith(letter), family


def test_a_call_after_a_broken_one_is_found() -> None:
    broken = '<tool_call>{"name": "get_time", "arguments": {"a": </tool_call>'
    whole = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    for streams in (False, True):
        found = read(reading("hermes", streams_calls=streams), [broken + whole])
        assert found.calls[-1] == TIME
    found = read(reading("hermes"), [broken + whole])
    assert (found.text, found.calls) == (broken, [TIME])


def test_without_tools_calls_are_text() -> None:
    for vector in VECTORS:
        if (
            vector.calls
            and vector.family not in ("harmony", "functionary", "command-r7b", "solar-open")
            and not vector.thinking
        ):
            found = read(reading(vector.family, tools=[], **vector.options), [vector.answer])
            whole = glimmer_text(vector.answer) if vector.family == "glimmer" else vector.answer
            assert found.text == whole


#: The pieces markup is made of.
MARKS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<function=get_time>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        "{",
        "}",
    ),
    *(
        '"name": "get_time"',
        '"arguments": ',
        '"',
        ": ",
        ", ",
        "[",
        "]",
        "get_time",
        "(",
        ")",
        "a",
        "=",
        "1",
        "\n",
        " ",
    ),
    *(
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|channel|>",
        "analysis",
        "final",
        "commentary to=functions.get_time",
        "<|message|>",
    ),
    *(
        "<|end|>",
        "<|start|>",
        "assistant",
        "<think>",
        "</think>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "\\",
    ),
    *(
        "</arg_value>",
        "<|tool_call>",
        "call:",
        '<|"|>',
        "<tool_call|>",
        "all\n",
        ">>>",
        "<|python_tag|>",
        ";",
        "ü",
    ),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "```json\n",
        "null",
    ),
    *map(m3, ("<tool_call>", '<invoke name="get_time">', "<a>", "<item>", "</item>", "</a>", "</invoke>")),
    *map(hy, ("<tool_calls>", "<tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
    *map(hy, ("<tool_sep>", "</tool_call>")),
]
ANSWERS = st.lists(st.sampled_from(MARKS), max_size=24).map("".join)
CUTS = st.lists(st.integers(0, 200), max_size=6)
SHUFFLED = [name for name, family in FAMILIES.items() if family.calls is not None]


def check_any(answer: str, cuts: list[int], family: str, streams: bool, thinks: bool) -> None:
    how = reading(family, streams_calls=streams, thinking=THINK if thinks else None, prompt=">>>")
    whole = read(how, [answer])
    found = read(how, cut(answer, cuts))
    assert (found.text, found.thinking, found.calls) == (whole.text, whole.thinking, whole.calls)
    if not streams:
        for _, arguments in whole.calls:
            assert isinstance(json.loads(arguments), dict)
        if (
            not whole.calls
            and not thinks
            and not FAMILIES[family].dropped
            and family not in ("harmony", "functionary")
        ):
            assert whole.text == (glimmer_text(answer) if family == "glimmer" else answer)


@given(ANSWERS, CUTS, st.sampled_from(SHUFFLED), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_cuts_of_any_answer_make_no_difference(
    answer: str, cuts: list[int], family: str, streams: bool, thinks: bool
) -> None:
    check_any(answer, cuts, family, streams, thinks)


@pytest.mark.thorough
@pytest.mark.parametrize("family", SHUFFLED)
def test_the_cuts_of_many_random_answers_make_no_difference(family: str) -> None:
    @given(ANSWERS, CUTS, st.booleans(), st.booleans())
    @settings(max_examples=2000, deadline=None)
    def run(answer: str, cuts: list[int], streams: bool, thinks: bool) -> None:
        check_any(answer, cuts, family, streams, thinks)

    run()


def mixed(family: str) -> st.SearchStrategy[str]:
    """Return answers of the pieces of markup, whole calls and thoughts of a family, and its tags."""
    record = FAMILIES[family]
    whole = [vector.answer for vector in VECTORS if vector.family == family]
    openings = record.calls.openings if record.calls is not None else ()
    lines = ["\n", "\nSo", "x ", "<think>\nHm\n</think>\n"]
    pieces = [*MARKS, *4 * [*whole, *openings, *record.dropped, *lines]]
    return st.lists(st.sampled_from(pieces), max_size=12).map("".join)


def check_text(answer: str, cuts: list[int], family: str, thinks: bool, tools: bool, begun: bool) -> None:
    """Check that markup left in the text is broken: read as text again, it stays as it is."""
    options: dict[str, Any] = {"thinking": THINK if thinks else None, "unmarks_calls": not tools}
    given: list[Any] = TOOLS if tools else []
    how = reading(family, tools=given, prompt="<think>" if begun else "", **options)
    found = read(how, cut(answer, cuts))
    if family.startswith("mistral") and not tools and "[TOOL_CALLS]" in found.text:
        return  # a broken tag and the text of a whole call behind it look like a call
    # A broken header of Glimmer's and the rest of a whole one behind it look like a header.
    for text in GLIMMER_TAGS.split(found.text) if family == "glimmer" else [found.text]:
        again = read(reading(family, tools=given, **options), [".\n" + text])
        assert (again.text.strip(), again.thinking, again.calls) == ((".\n" + text).strip(), "", [])
    if not tools:
        assert not found.calls


#: What Glimmer's messages begin and end with, and what the rest of a header is where the prompt began it.
GLIMMER_TAGS = re.compile(
    r"<\|start\|>\s*(?:assistant)?\s*(?:to=[^\s<>|]+\s*)?<\|message\|>|<\|eom\|>|<\|eot\|>"
)
GLIMMER_BEGUN = re.compile(r"(?: to=[^\s<>|]+\s*)?<\|message\|>")
GLIMMER_PIECES = [
    "<|start|>", "<|message|>", "<|eom|>", "<|eot|>", "<atem:function_calls>", "assistant", "user",
    " to=self", " to=user", " to=get_time", " to=", "to=self", " ", "\n", "So", "<|", "x",
]  # fmt: skip


def glimmer_text(answer: str) -> str:
    """Return an answer without calls and without the tags of its messages."""
    begun = GLIMMER_BEGUN.match(answer)
    return GLIMMER_TAGS.sub("", answer[begun.end() if begun else 0 :])


@given(st.lists(st.sampled_from(GLIMMER_PIECES), max_size=12).map("".join), CUTS, st.booleans())
@example(" to=self<|eom|>Hello<|message|>", [], False)
@example("<|start|>assistant to=Hello<|start|>to=user<|message|>", [], False)
@settings(max_examples=400, deadline=None)
def test_all_text_of_glimmer_but_whole_headers_and_ends_is_said_or_thought(
    answer: str, cuts: list[int], tools: bool
) -> None:
    parser = AnswerParser(reading("glimmer", tools=TOOLS if tools else []))
    parts = [part for piece in cut(answer, cuts) for part in parser.feed(piece)] + parser.flush()
    assert "".join(part.text for part in parts) == glimmer_text(answer)


@pytest.mark.slow
@given(st.data(), CUTS, st.sampled_from(list(FAMILIES)), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_only_broken_markup_reaches_text(
    data: st.DataObject, cuts: list[int], family: str, thinks: bool, tools: bool, begun: bool
) -> None:
    check_text(data.draw(mixed(family)), cuts, family, thinks, tools, begun)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_only_broken_markup_of_many_random_answers_reaches_text(family: str) -> None:
    @given(mixed(family), CUTS, st.booleans(), st.booleans(), st.booleans())
    @settings(max_examples=2000, deadline=None)
    def run(answer: str, cuts: list[int], thinks: bool, tools: bool, begun: bool) -> None:
        check_text(answer, cuts, family, thinks, tools, begun)

    run()


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.calls], ids=str)
def test_without_tools_a_whole_call_is_text_without_markup(vector: Vector) -> None:
    calls = FAMILIES[vector.family].calls
    assert calls is not None
    how = reading(vector.family, tools=[], unmarks_calls=True, **vector.options)
    if not calls.openings or vector.answer.startswith(("{", "[")):
        return  # an object without tags is no markup
    for pieces in ([vector.answer], list(vector.answer)):
        found = read(how, pieces)
        assert (found.thinking, found.calls) == (vector.thinking, [])
        if "python" not in vector.answer:  # Llama's code tag needs a tool's name to be a call
            assert not any(opening in found.text for opening in calls.openings if opening.strip("ofunctlsA:"))
            assert [line.partition("{")[0] for line in found.text.splitlines() if "{" in line] == [
                name for name, arguments in vector.calls
            ]
