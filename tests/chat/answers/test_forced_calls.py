"""Answers that follow the grammar of a family's calls are calls valid against the parameters as sent."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from puna.chat.answers.family import Reading
from puna.chat.answers.registry import FAMILIES
from puna.chat.answers.tools import tools_of
from puna.errors import RequestError
from puna.grammar.calls import MAX_CALLS, calls_grammar
from puna.grammar.compiled import Grammars
from puna.tokenizer import Tokenizer
from tests.chat.answers.forcing import BYTES, CALLING, PROMPTS, check_arguments, matcher_of, said
from tests.chat.answers.reading import TOOLS, read, tool
from tests.chat.answers.vectors import hy, m3

#: Schemas as people write them. Go templates show models neither patterns nor lengths nor formats.
PARAMETERS: dict[str, Any] = {
    "text": {"type": "string", "minLength": 2, "maxLength": 6},
    "days": {"type": "integer", "minimum": 3, "maximum": 9},
    "metric": {"type": "boolean"},
    "unit": {"type": "string", "enum": ["a b", 'c"d', "null", "</x>", "ü"]},
    "when": {"type": "string", "format": "date"},
    "id": {"type": "string", "pattern": "^[a-c]{2}/[0-9]$"},
    "hours": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
    "detail": {
        "type": "object",
        "properties": {"x": {"type": "string", "maxLength": 3}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "optional": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
    "mixed": {"type": ["integer", "string"]},
    "level": {"enum": ["low", 2, None]},
    "anything": {},
    "shared": {"$ref": "#/$defs/R"},
}
RICH = tool("get_weather", ["text", "days"], **PARAMETERS)
RICH["function"]["parameters"]["$defs"] = {"R": {"type": "string", "const": "r/1"}}
GIVEN = [RICH, tool("get_time")]


#: The same tool with all parameters whose values are bounded, each of them required.
ENDING = {name: schema for name, schema in PARAMETERS.items() if name != "anything"}
WHOLE = tool("get_weather", [*ENDING], **ENDING)
WHOLE["function"]["parameters"]["$defs"] = RICH["function"]["parameters"]["$defs"]


def forced(family: str, **more: Any) -> Reading:
    options = {"tools": tools_of(GIVEN), "choice": "required", "prompt": PROMPTS.get(family, ""), **more}
    return Reading(FAMILIES[family], **options)


def check(how: Reading, seeds: range) -> None:
    grammar = calls_grammar(how, json.dumps)
    texts = [text for seed in seeds if (text := said(grammar, random.Random(seed))) is not None]
    assert texts
    for text in texts:
        found = read(how, [text])
        assert found.calls, text
        assert not found.text, text
        check_arguments(how, found)


@pytest.mark.parametrize("family", CALLING)
def test_a_forced_call_is_valid(family: str) -> None:
    check(forced(family, choice="required", parallel=False, tools=tools_of([WHOLE])), range(2))


@pytest.mark.thorough
@pytest.mark.parametrize("choice", ["required", "function:get_weather"])
@pytest.mark.parametrize("family", CALLING)
def test_forced_calls_are_valid(family: str, choice: str) -> None:
    check(forced(family, choice=choice), range(40))


@pytest.mark.parametrize("family", CALLING)
def test_a_strict_answer_is_text_or_valid_calls(family: str) -> None:
    how = forced(family, choice="auto", strict=True)
    grammar = calls_grammar(how, json.dumps)
    for seed in range(2):
        text = said(grammar, random.Random(seed), 300)
        for _, arguments in read(how, [text or ""]).calls:
            assert isinstance(json.loads(arguments), dict)
    for call in (said(calls_grammar(forced(family), json.dumps), random.Random(seed)) for seed in range(1)):
        if call is not None:  # a call is forced in other tests and only allowed here
            matcher = matcher_of(grammar)
            data = BYTES.tokenize_bytes(call.encode())
            assert matcher.try_consume_tokens(data) == len(data), call


@pytest.mark.parametrize("family", ["hermes", "qwen3-coder"])
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "does not have"),
        ({"$ref": "#"}, "without end"),
        (
            {"type": "object", "properties": {"a": {"type": "array", "contains": {}}}},
            '"contains" at #/properties/a',
        ),
        ({"type": "object", "properties": {"a": {"not": {}}}}, '"not" at #/properties/a'),
        (
            {"properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]},
            "the schema at #/properties/a cannot be used",
        ),
        ({"properties": {"a": {"type": "string", "minLength": 10**9}}}, "#/properties/a/minLength is"),
        ({"properties": {"a": {"type": "array", "minItems": 10**9}}}, "#/properties/a/minItems is"),
        ({"properties": {}, "required": [str(i) for i in range(1001)]}, "1,001 required names"),
    ],
)
def test_unsupported_parameters_are_named(
    grammars: Grammars, family: str, parameters: dict[str, Any], words: str
) -> None:
    tools = tools_of([{"function": {"name": "f", "parameters": parameters}}])
    with pytest.raises(RequestError) as error:
        grammars.constraint_of(None, forced(family, tools=tools))
    assert words in str(error.value)
    assert "'f'" in str(error.value) or '"f"' in str(error.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"minLength": 10_000}, "the text at #/properties/a takes more work to follow than is allowed"),
        ({"pattern": "(a{1000}){1000}"}, "takes more work to follow"),
        ({"pattern": "^a{3}$", "minLength": 5}, "no text satisfies the schema at #/properties/a"),
        ({"format": "date", "maxLength": 5}, "no text satisfies"),
        ({"const": "null"}, "no text satisfies"),  # as the text of a parameter it would be read as null
    ],
)
def test_texts_that_cannot_be_written_verbatim_are_refused(
    grammars: Grammars, schema: dict[str, Any], words: str
) -> None:
    given = tool("f", ["a"], a={"type": "string", **schema})
    with pytest.raises(RequestError, match="the parameters of tool 'f': .*" + words):
        grammars.constraint_of(None, forced("qwen3-coder", tools=tools_of([given])))


@pytest.mark.parametrize("bound", [{"minLength": 20.0, "maxLength": 10**12}, {"maxLength": 10**6}])
def test_large_lengths_are_accepted_if_they_take_no_work(grammars: Grammars, bound: dict[str, Any]) -> None:
    given = tool("f", ["a"], a={"type": "string", **bound})
    grammars.constraint_of(None, forced("qwen3-coder", tools=tools_of([given])))


@pytest.mark.parametrize(
    ("family", "name", "parameter"),
    [
        ("qwen3-coder", "f", "a>b"),
        ("qwen3-coder", "f>", "a"),
        ("glm", "f", " a"),
        ("glm", "f", ""),
        ("deepseek-v3.2", 'f"', "a"),
        ("minimax-m3", "f", "/a"),
        ("gemma4", "f", '"a"'),
        ("lfm2", "f(", "a"),
        ("mistral", "f{", "a"),
        ("harmony", "f g", "a"),
        ("functionary", "all", "a"),
        ("functionary", "f\ng", "a"),
    ],
)
def test_names_that_would_be_read_as_others_are_refused(
    grammars: Grammars, family: str, name: str, parameter: str
) -> None:
    wrong = f"the tool name {name!r}" if parameter == "a" else f"the parameter name {parameter!r}"
    given = tools_of([tool(name, [parameter], **{parameter: {"type": "integer"}})])
    with pytest.raises(RequestError, match=re.escape(wrong) + ".* is not supported in calls of this"):
        grammars.constraint_of(None, forced(family, tools=given))


@pytest.mark.parametrize("family", ["hermes", "glm"])
def test_names_with_control_tokens_are_refused(grammars: Grammars, tokenizer: Tokenizer, family: str) -> None:
    end = tokenizer.piece(min(tokenizer.eos_ids)).decode()
    given = tools_of([tool(f"f{end}")])
    with pytest.raises(RequestError, match=r"the tool name .f<[|]end[|]>. is not supported"):
        grammars.constraint_of(None, forced(family, tools=given))


@pytest.mark.parametrize(
    ("name", "parameter"), [("3d/é", "xml:lang"), ("f.g", "filter[name]"), ("$f", "x=1,y"), ("f", "@ id")]
)
@pytest.mark.parametrize("family", CALLING)
def test_unusual_names_are_written_and_read(family: str, name: str, parameter: str) -> None:
    given = tool(name, [parameter], **{parameter: {"type": "integer", "maximum": 9}})
    check(forced(family, tools=tools_of([given]), parallel=False), range(2))


def test_the_grammar_of_all_tools_has_a_limit(grammars: Grammars) -> None:
    given = [tool(f"f{i}", a={"enum": [f"{j:09}" for j in range(5000)]}) for i in range(20)]
    with pytest.raises(RequestError, match=r"grammar of the tools' calls has .* bytes, and at most"):
        grammars.constraint_of(None, forced("hermes", tools=tools_of(given)))


def test_number_of_forced_calls_is_limited() -> None:
    grammar = calls_grammar(forced("hermes", tools=tools_of([tool("f")])), json.dumps)
    matcher = matcher_of(grammar)
    one = BYTES.tokenize_str('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    for _ in range(MAX_CALLS):
        assert matcher.try_consume_tokens(one) == len(one)
        if not matcher.is_stopped():
            matcher.try_consume_tokens(BYTES.tokenize_str("\n"))
    assert matcher.is_stopped() or matcher.try_consume_tokens(one) < len(one)


def test_an_unknown_tool_cannot_be_chosen() -> None:
    with pytest.raises(RequestError, match="there are get_weather, get_time, write"):
        calls_grammar(forced("hermes", choice="function:nobody", tools=tools_of(TOOLS)), json.dumps)


def test_a_schema_repeated_in_unions_is_read_once() -> None:
    doubling: dict[str, Any] = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    doubling["d40"] = {"type": ["string", "null"]}
    circle = {"anyOf": [{"type": "integer"}, *[{"$ref": "#/$defs/circle"}] * 9]}
    given = tool("f", a={"$ref": "#/$defs/d0"}, b={"$ref": "#/$defs/circle"})
    given["function"]["parameters"]["$defs"] = {**doubling, "circle": circle}
    tools = tools_of([given])
    assert tools["f"].types_of(tools["f"].properties["a"]) == ["string", "null"]
    assert tools["f"].types_of(tools["f"].properties["b"]) == ["integer"]
    grammar = calls_grammar(forced("qwen3-coder", tools=tools), json.dumps)
    assert not matcher_of(grammar).is_error()


def test_a_union_of_only_itself_is_refused() -> None:
    given = tool("f", ["a"], a={"$ref": "#/$defs/a"})
    given["function"]["parameters"]["$defs"] = {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}
    with pytest.raises(RequestError, match="no value satisfies the schema: #/properties/a"):
        calls_grammar(forced("qwen3-coder", tools=tools_of([given])), json.dumps)


def follows(family: str, parameters: dict[str, Any], value: str) -> bool:
    """Return whether a model may write `value`, up to the closing tag, as the parameter `a`."""
    tools = tools_of([{"function": {"name": "f", "parameters": parameters}}])
    grammar = calls_grammar(forced(family, tools=tools, parallel=False), json.dumps)
    matcher = matcher_of(grammar)
    text = BYTES.tokenize_str(written(family, value))
    return matcher.try_consume_tokens(text) == len(text)


def written(family: str, value: str) -> str:
    if family == "glm":
        return f"<tool_call>f\n<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>"
    if family == "minimax-m3":
        begin, end = '<tool_call>\n<invoke name="f"><a>', "</a></invoke>\n</tool_call>"
        return f"{m3(begin)}{value}{m3(end)}"
    if family == "hy3":
        begin = "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>"
        end = "</arg_value>\n</tool_call>\n</tool_calls>"
        return f"{hy(begin)}{value}{hy(end)}"
    return f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"


UNTYPED = ["qwen3-coder", "glm"]
EXACT = ["hy3", "minimax-m3"]


@pytest.mark.parametrize("family", [*UNTYPED, *EXACT])
@pytest.mark.parametrize(
    ("other", "same", "plain"),
    [
        ({"type": "integer", "maximum": 3}, "50", "5 "),
        ({"type": "number", "maximum": 3}, "5e1", "5e"),
        ({"type": "array", "items": {"type": "integer"}}, '["a"]', '"a"]'),
        ({"type": "object", "required": ["b"]}, "{}", "}"),
        ({"const": True}, "False", "Falsely"),
        ({"type": "null"}, "\x1cnull", "nulls"),
    ],
)
def test_a_text_that_would_be_read_as_another_type_is_not_written(
    family: str, other: dict[str, Any], same: str, plain: str
) -> None:
    parameters = {"properties": {"a": {"anyOf": [{"type": "string"}, other]}}, "required": ["a"]}
    assert not follows(family, parameters, same)
    assert follows(family, parameters, plain.strip() + "x")


@pytest.mark.parametrize("family", [*UNTYPED, *EXACT])
def test_line_breaks_at_the_ends_of_a_text_are_written_where_they_are_read(family: str) -> None:
    parameters = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    for value in ("x\ny", "\nx", "x\n"):
        how = forced(family, tools=tools_of([{"function": {"name": "f", "parameters": parameters}}]))
        text = json.loads(read(how, [written(family, value)]).calls[0][1])["a"]
        assert text == (value.strip() if family == "glm" else value)
        assert follows(family, parameters, value) == (text == value)


@pytest.mark.parametrize("family", [*UNTYPED, *EXACT])
def test_enum_values_read_as_another_type_are_not_written(family: str) -> None:
    parameters = {"properties": {"a": {"enum": ["5", "x", 7]}}, "required": ["a"]}
    assert [value for value in ("5", "x", "7") if follows(family, parameters, value)] == ["x", "7"]
    parameters = {"properties": {"a": {"enum": ["5", 7]}}, "required": ["a"]}
    assert [value for value in ("5", "7") if follows(family, parameters, value)] == ["7"]
    text = {"type": "string", "enum": ["x", "y", 7], "const": "x"}
    parameters = {"properties": {"a": text}, "required": ["a"]}
    assert [value for value in ("x", "y", "7") if follows(family, parameters, value)] == ["x"]


@pytest.mark.parametrize("family", ["hermes", *UNTYPED])
def test_annotations_and_properties_without_values_are_left_out(grammars: Grammars, family: str) -> None:
    text = {"type": "string", "optional": True, "nullable": True}
    of_two = {"anyOf": [{"type": "integer"}, {"type": "null"}], "x-order": 1}
    impossible = {"type": "boolean", "enum": ["True", "False"]}
    given = {"properties": {"a": text, "b": of_two, "c": impossible}, "optional": ["b"], "required": ["a"]}
    tools = tools_of([{"function": {"name": "f", "parameters": given}}])
    grammars.constraint_of(None, forced(family, tools=tools))
    given["required"] = ["a", "c"]
    with pytest.raises(RequestError, match=r"the parameters of tool 'f': .*#/properties/c"):
        grammars.constraint_of(None, forced(family, tools=tools))


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("family", UNTYPED)
def test_a_closing_tag_inside_a_json_string_does_not_end_the_value(family: str, size: int) -> None:
    parameters = {"properties": {"a": {"type": "array"}, "b": {"type": "array"}}, "required": ["a"]}
    tools = tools_of([{"function": {"name": "f", "parameters": parameters}}])
    how = forced(family, tools=tools, parallel=False)
    tag = "</arg_value>" if family == "glm" else "</parameter>"

    def arguments(value: str) -> Any:
        text = written(family, value)
        found = read(how, [text[i : i + size] for i in range(0, len(text), size)])
        assert not found.text
        (call,) = found.calls
        return json.loads(call[1])

    value = ["T", {tag: f'"{tag} \\', "x": tag}]
    assert follows(family, parameters, json.dumps(value))
    assert arguments(json.dumps(value)) == {"a": value}
    # A value that is not JSON then ends at the first tag.
    key = "<parameter=b>\n" if family != "glm" else "<arg_key>b</arg_key><arg_value>"
    line = "" if family == "glm" else "\n"
    for first in ('["a', '["a", "it"s"]'):
        assert arguments(first) == {"a": first}
        for second, value in (('["c"]', ["c"]), ('["c]', '["c]')):
            assert arguments(f"{first}{line}{tag}{line}{key}{second}") == {"a": first, "b": value}


#: A tree of lists, with an element that looks like a list's and values that have no elements of their own.
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"item": {"type": "integer", "maximum": 3}, "nodes": {"$ref": "#/$defs/nodes"}},
    "required": ["item"],
}
TREES: dict[str, Any] = {
    "properties": {"a": {"$ref": "#/$defs/tree"}},
    "required": ["a"],
    "$defs": {
        "tree": TREE,
        "nodes": {"type": ["array", "null"], "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
    },
}


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("<item>1</item>", {"item": 1}),
        ("<item>1</item><nodes></nodes>", {"item": 1, "nodes": []}),
        ("<item>1</item><nodes>null</nodes>", {"item": 1, "nodes": None}),
        (
            "<item>1</item><nodes><item><item>2</item></item><item><item>3</item></item></nodes>",
            {"item": 1, "nodes": [{"item": 2}, {"item": 3}]},
        ),
        ("", None),
        ("<nodes></nodes>", None),
        ("<item>4</item>", None),
        ("<item>1</item><nodes><item>2</item></nodes>", None),
        ("<item>1</item><nodes>" + 3 * "<item><item>2</item></item>" + "</nodes>", None),
        ('{"item": 1}', None),
    ],
)
def test_values_within_values_are_elements(value: str, meaning: Any) -> None:
    assert follows("minimax-m3", TREES, m3(value)) == (meaning is not None)
    if meaning is not None:
        how = forced("minimax-m3", tools=tools_of([{"function": {"name": "f", "parameters": TREES}}]))
        (call,) = read(how, [written("minimax-m3", m3(value))]).calls
        assert json.loads(call[1]) == {"a": meaning}


def test_lists_have_as_many_elements_as_their_schema_says() -> None:
    values = {"type": "array", "items": {"type": "integer"}, "minItems": 2}
    item = m3("<item>1</item>")
    for more, most in (({}, 4), ({"maxItems": 3}, 3)):
        parameters = {"properties": {"a": {**values, **more}}, "required": ["a"]}
        allowed = [follows("minimax-m3", parameters, item * count) for count in range(5)]
        assert allowed == [2 <= count <= most for count in range(5)]


@pytest.mark.parametrize(
    ("schema", "is_text"),
    [
        ({"type": "string"}, True),
        ({}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, False),
    ],
)
def test_a_text_that_would_be_read_as_an_element_is_not_written(
    schema: dict[str, Any], is_text: bool
) -> None:
    parameters = {"properties": {"a": schema}, "required": ["a"]}
    how = forced("minimax-m3", tools=tools_of([{"function": {"name": "f", "parameters": parameters}}]))
    (call,) = read(how, [written("minimax-m3", m3("<b>x</b>"))]).calls
    assert (json.loads(call[1])["a"] == m3("<b>x</b>")) == is_text
    assert follows("minimax-m3", parameters, m3("<b>x</b>")) == is_text


def test_calls_with_values_within_values_are_valid() -> None:
    tools = tools_of([{"function": {"name": "f", "parameters": TREES}}])
    check(forced("minimax-m3", tools=tools, parallel=False), range(6))


@pytest.mark.parametrize(
    ("schema", "text", "element"),
    [
        ({"type": "object"}, '{"x": 1}', "<x>1</x>"),
        ({"type": "array"}, "[1]", "<item>1</item>"),
        ({"type": ["object", "array"], "properties": {"x": {}}}, '{"x": 1}', "<x>1</x>"),
        (
            {"anyOf": [{"type": "object", "properties": {"x": {"const": n}}} for n in (1, "1")]},
            '{"x": 1}',
            "<x>1</x>",
        ),
        ({"type": "object", "properties": {"x": {}}, "maxProperties": 1}, '{"x": 1}', "<x>1</x>"),
    ],
)
def test_values_whose_elements_are_not_known_are_json(
    schema: dict[str, Any], text: str, element: str
) -> None:
    parameters = {"properties": {"a": schema}, "required": ["a"]}
    assert follows("minimax-m3", parameters, text)
    assert not follows("minimax-m3", parameters, m3(element))
    how = forced("minimax-m3", tools=tools_of([{"function": {"name": "f", "parameters": parameters}}]))
    (call,) = read(how, [written("minimax-m3", text)]).calls
    jsonschema.validate(json.loads(call[1]), parameters)
