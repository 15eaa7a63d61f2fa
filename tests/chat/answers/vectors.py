# ruff: noqa: E501 (an answer is easier to read on one line)
"""Answers as the models of each family write them, by their published templates, and their meaning."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from puna.chat.answers.parts import Tags
from tests.chat.answers.reading import THINK


@dataclass
class Vector:
    family: str
    answer: str
    calls: list[tuple[str, str]] = field(default_factory=list)
    text: str = ""
    thinking: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.family}: {self.answer}"


def weather(arguments: str) -> tuple[str, str]:
    return "get_weather", arguments


THINKS = {"thinking": THINK}
PARIS = weather('{"city": "Paris"}')
TIME = ("get_time", "{}")


def m3(text: str) -> str:
    """Put the mark of MiniMax M3 before the tags of calls."""
    return text.replace("<", "]<]minimax[>[<")


def hy(text: str, suffix: str = ":opensource") -> str:
    """Put the suffix of a model of Hy into its tags."""
    return text.replace(">", f"{suffix}>")


MM_THINK = Tags("<mm:think>", "</mm:think>")
HY_THINK = Tags("<think:opensource>", "</think:opensource>")

VECTORS = [
    # --- JSON between tags
    Vector(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [PARIS],
    ),
    Vector(
        "hermes",
        'Let me see. <tool_call>{"name":"get_weather","arguments":{"city":"Par\\u00eds","days":1.50}}'
        '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        [weather('{"city":"Par\\u00eds","days":1.50}'), TIME],
        "Let me see. ",
    ),
    Vector(
        "hermes",
        "<think>\nWhich city?\n</think>\n\nHere:\n\n"
        '<tool_call>{"arguments": {"days": 10000000000000000000000, "city": "x"}, "name": "get_weather"}</tool_call>',
        [weather('{"days": 10000000000000000000000, "city": "x"}')],
        "Here:",
        "Which city?\n",
        THINKS,
    ),
    Vector(
        "hermes",
        '<tool_call>{"name": "nobody", "arguments": {"a": [1, {"b": null}]}}</tool_call> So',
        [("nobody", '{"a": [1, {"b": null}]}')],
        "So",
    ),
    Vector(
        "hermes",
        '<tool_call>{"name": "get_time", "arguments": "{\\"zone\\": 1}"}',
        [("get_time", '{"zone": 1}')],
    ),
    Vector(
        "hermes",
        '<tool_call>{"name": "write", "arguments": {"text": "\\uD83D\\ude00 \\ud83d\\n\\udc00"}}</tool_call>',
        [("write", '{"text": "\\uD83D\\ude00 \\ufffd\\n\\ufffd"}')],
    ),
    Vector("hermes", '<tool_call>{"name": "get_time"}</tool_call>', [TIME]),
    Vector(
        "hermes",
        '<tool_call>{"name": "write", "arguments": {"text": "ü, Zürich ü"}}</tool_call>',
        [("write", '{"text": "ü, Zürich ü"}')],
    ),
    Vector(
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "get_time", "parameters": null}}</tool_call>',
        [TIME],
    ),
    # --- parameters with tags of their own
    Vector(
        "qwen3-coder",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nSan\nMarino\n\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n"
        '<parameter=detail>\n{"b": 1, "a": [2.0]}\n</parameter>\n<parameter=hours>[1, 2]</parameter>\n'
        "<parameter=scale>null</parameter>\n</function>\n</tool_call>",
        [
            weather(
                '{"city": "San\\nMarino\\n", "days": 3, "metric": true, "detail": {"b": 1, "a": [2.0]}, '
                '"hours": [1, 2], "scale": null}'
            )
        ],
        "I look.",
    ),
    Vector("qwen3-coder", "<tool_call>\n<function=get_time>\n</function>\n</tool_call>", [TIME]),
    Vector(
        "qwen3-coder",
        '<function=write>\n<parameter=text>\nif a < b:\n  "x"\\n\n</parameter>\n</function>',
        [("write", '{"text": "if a < b:\\n  \\"x\\"\\\\n"}')],
    ),
    Vector(
        "qwen3-coder",
        "<tool_call><function=write><parameter=text>NULL</parameter></function></tool_call>",
        [("write", '{"text": null}')],
    ),
    Vector(
        "qwen3-coder",
        "<tool_call><function=write><parameter=text>nullify</parameter></function></tool_call>",
        [("write", '{"text": "nullify"}')],
    ),
    Vector(
        "qwen3-coder",
        "<tool_call><function=get_weather><parameter=days>many</parameter><parameter=new>1</parameter></function></tool_call>",
        [weather('{"days": "many", "new": "1"}')],
    ),
    Vector(
        "seed",
        "<seed:think>Hm.</seed:think>Well\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>",
        [weather('{"city": "Paris", "days": 2}')],
        "Well",
        "Hm.",
        {"thinking": Tags("<seed:think>", "</seed:think>")},
    ),
    Vector(
        "minimax",
        '<think>\nA\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="hours">[1.5]</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        [weather('{"city": "Paris", "hours": [1.5]}'), TIME],
        "",
        "A\n",
        THINKS,
    ),
    Vector(
        "deepseek-v3.2",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">12'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">4</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        [weather('{"city": "12", "days": 4}')],
    ),
    Vector(
        "deepseek-v4",
        'So.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        [TIME],
        "So.",
    ),
    Vector(
        "glm",
        "<think>Hm</think>\n\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time</tool_call>",
        [weather('{"city": "Paris", "days": 3}'), TIME],
        "",
        "Hm",
        THINKS,
    ),
    Vector(
        "glm",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        [PARIS],
    ),
    # Models of Hy 3 and 4, as in vLLM's tests of its parsers for them.
    Vector(
        "hy3",
        hy(
            "<think>Hm.</think>Look<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n"
            "<arg_value>\nPar\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
            "<tool_call>get_time<tool_sep>\n</tool_call>\n</tool_calls>"
        ),
        [weather('{"city": "\\nPar\\n", "days": 3}'), TIME],
        "Look",
        "Hm.",
        {"thinking": HY_THINK},
    ),
    Vector("hy3", hy("<tool_calls><tool_call>get_time<tool_sep></tool_call></tool_calls>"), [TIME]),
    Vector(
        "hy3-preview",
        "<think>Hm.</think><tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n"
        "<arg_value>Paris</arg_value>\n</tool_call>\n</tool_calls>",
        [PARIS],
        "",
        "Hm.",
        THINKS,
    ),
    Vector(
        "hy4",
        hy(
            "Hm.</think>answer<tool_calls><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
            "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>get_time</tool_call></tool_calls>"
        ),
        [weather('{"city": "Paris", "days": 3}'), TIME],
        "answer",
        "Hm.",
        {"thinking": HY_THINK, "prompt": hy("<think>")},
    ),
    Vector(
        "hy4",
        hy(
            "<tool_calls>\n<tool_call>get_weather<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
        ),
        [PARIS],
    ),
    # A call before the end of a thought, as in llama.cpp's tests of its parser for Ling 3.
    Vector(
        "ling3",
        "I need the weather.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n"
        "<tool_call>get_time\n\n</tool_call>",
        [PARIS, TIME],
        "",
        "I need the weather.\n",
        {"thinking": THINK, "prompt": "<role>ASSISTANT</role>\n<think>"},
    ),
    Vector(
        "ling3",
        "Hm.\n</think>\nLook.\n<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>\nSo.",
        [PARIS],
        "Look.So.",
        "Hm.\n",
        {"thinking": THINK, "prompt": "<role>ASSISTANT</role>\n<think>"},
    ),
    # --- elements named by their keys
    Vector(
        "minimax-m3",
        "<mm:think>Hm</mm:think>Look:"
        + m3(
            '<tool_call>\n<invoke name="get_weather"><city>Paris\n</city><days>2</days><metric>false</metric>'
            "<detail><b>1</b><a><item>x</item><item><c>y</c></item></a></detail><hours><item>1.5</item><item>-2</item>"
            '</hours><scale>null</scale></invoke>\n<invoke name="get_time"></invoke>\n</tool_call>'
        ),
        [
            weather(
                '{"city": "Paris\\n", "days": 2, "metric": false, "detail": {"b": "1", "a": ["x", {"c": "y"}]}, '
                '"hours": [1.5, -2], "scale": null}'
            ),
            TIME,
        ],
        "Look:",
        "Hm",
        {"thinking": MM_THINK},
    ),
    Vector(
        "minimax-m3",
        m3(
            '<tool_call><invoke name="get_weather">\n<city> a > b </city>\n<detail>\n<x>1</x>\n</detail>\n</invoke>'
            "</tool_call>So"
        ),
        [weather('{"city": " a > b ", "detail": {"x": "1"}}')],
        "So",
    ),
    Vector(
        "minimax-m3",
        m3(
            '<invoke name="get_weather"><detail></detail><hours> </hours><scale></scale></invoke>'
            '<invoke name="get_weather"><detail>{"a": [1]}</detail><hours>[1]</hours></invoke></tool_call>'
        ),
        [
            weather('{"detail": {}, "hours": [], "scale": ""}'),
            weather('{"detail": {"a": [1]}, "hours": [1]}'),
        ],
    ),
    Vector(
        "minimax-m3",
        m3(
            '<tool_call><invoke name="nobody"><a><item>1</item></a><b><c></c></b><d> 1\n</d></invoke></tool_call>'
        ),
        [("nobody", '{"a": ["1"], "b": {"c": ""}, "d": " 1\\n"}')],
    ),
    Vector(
        "minimax-m3",
        m3('<tool_call><invoke name="write"><text><b>hi</b></text></invoke></tool_call>'),
        [("write", json.dumps({"text": m3("<b>hi</b>")}))],
    ),
    # --- the name before JSON
    Vector(
        "mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}', [PARIS, TIME]
    ),
    Vector(
        "mistral", 'Look:[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Paris"}', [PARIS], "Look:"
    ),
    Vector(
        "mistral",
        "[THINK]Hm[/THINK]Yes",
        [],
        "Yes",
        "Hm",
        {"thinking": Tags("[THINK]", "[/THINK]")},
    ),
    Vector(
        "mistral-old",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "123456789"}, '
        '{"name": "get_time", "arguments": {}}]',
        [PARIS, TIME],
    ),
    Vector(
        "deepseek-v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n'
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, TIME],
    ),
    Vector(
        "deepseek-v3.1",
        "<think>Hm</think>Look<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [PARIS, TIME],
        "Look",
        "Hm",
        THINKS,
    ),
    Vector(
        "kimi",
        "Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        [PARIS, TIME],
        "Look.",
    ),
    Vector(
        "functionary-v3.1",
        '<function=get_weather>{"city": "Paris"}</function><function=get_time>{}</function>',
        [PARIS, TIME],
    ),
    Vector(
        "functionary",
        'all\nHello\n>>>get_weather\n{"city": "Paris"}',
        [PARIS],
        "Hello",
        "",
        {"prompt": "\n\n>>>"},
    ),
    Vector(
        "functionary",
        'get_weather\n{"city": "Paris"}\n>>>get_time\n{}',
        [PARIS, TIME],
        "",
        "",
        {"prompt": "\n\n>>>"},
    ),
    Vector(
        "mcp",
        "Hm.\n<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>get_weather</tool_name>\n<arguments>\n"
        '{"city": "Paris"}\n</arguments>\n</use_mcp_tool>',
        [PARIS],
        "Hm.",
    ),
    # --- calls as in programming languages
    Vector("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    Vector(
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time", "parameters": {}}',
        [PARIS, TIME],
    ),
    Vector("llama3", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    Vector("llama3", '<|python_tag|>get_weather.call(city="Paris")', [PARIS]),
    Vector(
        "llama3",
        '{"name": "nobody", "parameters": {"city": "Paris"}}',
        [],
        '{"name": "nobody", "parameters": {"city": "Paris"}}',
    ),
    Vector(
        "llama3",
        'Sure: {"name": "get_time", "parameters": {}}',
        [],
        'Sure: {"name": "get_time", "parameters": {}}',
    ),
    Vector("llama3", '{"a": 1}', [], '{"a": 1}'),
    Vector(
        "llama4",
        "[get_weather(city='it\\'s \"P\\u00e9\"', days=-3, metric=True, detail={'a': [1.0, None]}), get_time()]",
        [
            weather('{"city": "it\'s \\"Pé\\"", "days": -3, "metric": true, "detail": {"a": [1.0, null]}}'),
            TIME,
        ],
    ),
    Vector("llama4", '[write(text="\\ud83d\\ude00\\x41")]', [("write", '{"text": "😀A"}')]),
    Vector("llama4", "[1] is a note", [], "[1] is a note"),
    Vector(
        "lfm2",
        '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>Checking.',
        [PARIS],
        "Checking.",
    ),
    Vector(
        "olmo3", '<function_calls>\nget_weather(city="Paris")\nget_time()\n</function_calls>', [PARIS, TIME]
    ),
    Vector(
        "gemma4",
        '<|channel>thought\nHm\n<channel|><|tool_call>call:get_weather{city:<|"|>Pa"ris<|"|>,days:2,'
        'detail:{a:[true,<|"|>x<|"|>]}}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
        [weather('{"city": "Pa\\"ris", "days": 2, "detail": {"a": [true, "x"]}}'), TIME],
        "",
        "Hm\n",
        {"thinking": Tags("<|channel>thought", "<channel|>")},
    ),
    Vector(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
        [PARIS],
    ),
    # --- JSON without tags
    Vector(
        "template",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}\n{"name": "get_time", "parameters": {}}\n',
        [PARIS, TIME],
    ),
    Vector(
        "template",
        '{"name": "get_time", "arguments": {}}\n\n{"name": "write", "arguments": {"text": "a"}}\nSo.',
        [TIME, ("write", '{"text": "a"}')],
        "So.",
    ),
    # --- lists of JSON objects
    Vector("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', [PARIS]),
    Vector(
        "phi4",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]<|/tool_call|>',
        [PARIS, TIME],
    ),
    Vector(
        "phi4",
        'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        [PARIS],
    ),
    Vector(
        "functools",
        'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]',
        [PARIS, TIME],
    ),
    Vector(
        "functools",
        'Import functools first. functools [{"name": "get_time", "arguments": {}}] So',
        [TIME],
        "Import functools first. So",
    ),
    Vector(
        "command-r",
        'Action:\n```json\n[{"tool_name": "get_time", "parameters": {}}, '
        '{"tool_name": "get_weather", "parameters": {"city": "Paris"}}]\n```',
        [TIME, PARIS],
    ),
    Vector("command-r", 'Action: [{"tool_name": "get_time", "parameters": {}}]', [TIME]),
    Vector(
        "command-r",
        'Plan: I look.\nAction: ```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": {\n'
        '            "city": "Paris"\n        }\n    }\n]```',
        [weather('{\n            "city": "Paris"\n        }')],
        "Plan: I look.",
    ),
    Vector(
        "command-r7b",
        '<|START_THINKING|>Hm<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        '"parameters": {"city": "Paris"}}\n]<|END_ACTION|>',
        [PARIS],
        "",
        "Hm",
        {"thinking": Tags("<|START_THINKING|>", "<|END_THINKING|>")},
    ),
    Vector("command-r7b", "<|START_RESPONSE|>Hello<|END_RESPONSE|>", [], "Hello"),
    Vector(
        "apertus",
        '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"get_time": {}}]<|tools_suffix|>',
        [PARIS, TIME],
    ),
    Vector(
        "apriel",
        '\n<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "1"}]</tool_calls>',
        [PARIS],
    ),
    Vector("nemotron", '<TOOLCALL>[{"name": "get_time", "arguments": {}}]</TOOLCALL>', [TIME]),
    Vector(
        "gigachat",
        'function call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Paris"}}<|message_sep|>',
        [PARIS],
    ),
    # --- messages with recipients
    Vector(
        "glimmer",
        " to=self<|message|>Which city?<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
        '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>'
        '<|start|>assistant to=get_time<|message|><atem:function_calls>\n<atem:invoke name="get_time">\n'
        "</atem:invoke>\n</atem:function_calls><|eot|>",
        [weather('{"city": "Paris", "days": 2}'), TIME],
        "",
        "Which city?",
    ),
    Vector(
        "glimmer",
        ' to=write<|message|><atem:function_calls>\n<atem:invoke name="write">\n'
        '<atem:parameter name="text">\n a\n</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>',
        [("write", '{"text": "\\n a\\n"}')],
    ),
    Vector("glimmer", " to=user<|message|>Hello <atem:x>", [], "Hello <atem:x>"),
    # --- harmony
    Vector(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello <|x|>",
        [],
        "Hello <|x|>",
        "Hm.",
    ),
    Vector(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        [PARIS],
        "I look.",
        "Hm.",
    ),
    Vector("harmony", " to=functions.get_time<|channel|>commentary json<|message|>", [TIME]),
    Vector("harmony", "<|start|>assistant to=functions.get_time<|channel|>analysis json<|message|>", [TIME]),
    Vector("harmony", "lo", [], "lo", "", {"prompt": "<|start|>assistant<|channel|>final<|message|>Hel"}),
    Vector("harmony", "Plain text", [], "Plain text"),
    # --- Solar Open
    Vector(
        "solar-open",
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hello <|x|>",
        [],
        "Hello <|x|>",
        "Hm.",
    ),
    Vector(
        "solar-open",
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>I look.<|end|><|begin|>assistant<|tool_calls|>"
        '<|tool_call:begin|>k3v8x0q1zz<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|>'
        "<|tool_call:begin|>a<|tool_call:name|>get_time<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        [PARIS, TIME],
        "I look.",
        "Hm.",
    ),
    Vector(
        "solar-open",
        "Let me see.<|flush|><|tool_calls|><|tool_call:begin|><|tool_call:name|>get_time<|tool_call:args|>{}<|tool_call:end|>",
        [TIME],
        "Let me see.",
        "",
        {"prompt": "<|begin|>assistant<|think|><|end|><|begin|>assistant<|content|>"},
    ),
    Vector(
        "solar-open",
        "Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>0<|tool_call:name|>get_time<|tool_call:args|>{}",
        [TIME],
        "",
        "Hm.",
        {"prompt": "<|begin|>assistant<|think|>"},
    ),
    Vector("solar-open", "<|content|>Hello<|flush|>", [], "Hello"),
]
