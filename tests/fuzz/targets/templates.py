"""Templates generated from a grammar of both languages, most of them valid, some endless or huge."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

from puna.chat.templates.choose import ChatTemplate
from puna.chat.templates.messages import Chat, Message
from puna.chat.templates.renderer.client import Renderer
from puna.errors import RendererError
from tests.fuzz.case import Bounds

#: The renderer's processor time is not counted here, but parsing may take a second.
BOUNDS = Bounds(seconds=4.0)

_NAMES = ["messages", "tools", "m", "x", "ns", "nothing", "loop", "bos_token", "add_generation_prompt"]
_FILTERS = [
    "length", "tojson", "tojson(indent=4)", "upper", "trim", "string", "list", "first", "last", "join(', ')",
    "map(attribute='role')", "selectattr('role', 'equalto', 'user')", "reverse", "sort", "int", "items",
    "center(80)", "center(10 ** 9)", "format(1)", "default('d')", "batch(2)", "pprint", "wordwrap(3)",
    "tojson(indent=500000000)", "abs", "replace('a', 'aa')", "round", "sum", "nosuch", "attr('append')",
]  # fmt: skip
_CONSTANTS = [
    "1",
    "-3",
    "2.5",
    "10 ** 9",
    "'text'",
    "'%s'",
    "'%99999999d'",
    "true",
    "none",
    "[1, 2]",
    "{'a': 1}",
]
_CALLS = [
    "range(9)", "range(99999)", "namespace(x=1)", "raise_exception('no')", "strftime_now('%Y')", "dict(a=1)",
    "lipsum(1)", "cycler(1, 2)", "joiner()", "x.append(1)", "''.join(messages)", "f(3)", "x.__class__",
]  # fmt: skip
_OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or"]
_GO_WORDS = [
    ".Messages", ".System", ".Tools", ".Response", ".Prompt", ".Nothing", ".Role", ".Content", "$x", "$",
    ".", "1", "-2.5", '"text"', "`raw`", "'c'", "true", "nil", "(len .Messages)", "(slice .Messages 0 1)",
    '(printf "%99999d" 1)', "(json .)", "(js .System)", "(index .Messages 0)", "(eq 1 1)", "(print $ $)",
]  # fmt: skip
_LETTERS = ["a", "<|im_start|>", "é", "\u2028", "\ud83c", "{", "%", "}}", "\n", "  ", "x" * 1000]


class _Grammar:
    """A generator of one template."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._left = dice.choice([5, 20, 60])  # statements left to generate

    def jinja(self) -> str:
        self._left -= 1
        if self._left < 0:
            return "{% if true %}{% endif %}"
        expression, body = self._expression(), "".join(self.jinja() for _ in range(self._dice.randint(0, 2)))
        return self._dice.choice([
            f"{{{{ {expression} }}}}",
            self._dice.choice(_LETTERS),
            f"{{% for m in {expression} %}}{body}{{% else %}}{body}{{% endfor %}}",
            f"{{%- if {expression} -%}}{body}{{% elif {expression} %}}{body}{{% endif %}}",
            f"{{% set x = {expression} %}}{body}",
            f"{{% for i in range(60) %}}{{% set ns.x = ns.x ~ {expression} ~ ns.x %}}{{% endfor %}}",
            "{% set ns = namespace(x='a') %}",
            f"{{% macro f(n) %}}{{% if n %}}{{{{ f(n - 1) }}}}{body}{{% endif %}}{{% endmacro %}}",
            f"{{% generation %}}{body}{{% endgeneration %}}",
            f"{{% filter {self._dice.choice(_FILTERS)} %}}{body}{{% endfilter %}}",
            f"{{% if {expression}",
            "{% break %}",
        ])  # fmt: skip

    def _expression(self, depth: int = 0) -> str:
        if depth > 3:
            return self._dice.choice(_NAMES + _CONSTANTS)
        a, b = self._expression(depth + 1), self._expression(depth + 1)
        return self._dice.choice([
            self._dice.choice(_NAMES),
            self._dice.choice(_CONSTANTS),
            self._dice.choice(_CALLS),
            f"{a} {self._dice.choice(_OPERATORS)} {b}",
            f"({a}) | {self._dice.choice(_FILTERS)}",
            f"({a})[{b}]",
            f"({a}).{self._dice.choice(['role', 'content', 'items()', 'x', 'strip()', 'format(1)'])}",
            f"{a} is {self._dice.choice(['defined', 'string', 'mapping', 'none', 'iterable', 'nosuch'])}",
            f"{a} if {b} else {a}",
            f"[{a}, {b}] * 99999",
        ])  # fmt: skip

    def go(self) -> str:
        self._left -= 1
        if self._left < 0:
            return "{{ .Response }}"
        word = self._dice.choice(_GO_WORDS)
        body = "".join(self.go() for _ in range(self._dice.randint(0, 2)))
        return self._dice.choice([
            f"{{{{ {word} }}}}",
            self._dice.choice(_LETTERS),
            f"{{{{- range {word} }}}}{body}{{{{ else }}}}{body}{{{{ end -}}}}",
            f"{{{{ range 100000 }}}}{body}{{{{ end }}}}",
            f"{{{{ if {word} }}}}{body}{{{{ else if {word} }}}}{body}{{{{ end }}}}",
            f"{{{{ with {word} }}}}{body}{{{{ end }}}}",
            f"{{{{ $x := {word} }}}}{body}{{{{ range 40 }}}}{{{{ $x = print $x {word} $x }}}}{{{{ end }}}}",
            f'{{{{ define "d" }}}}{body}{{{{ end }}}}{{{{ template "d" {word} }}}}',
            f"{{{{ {self._dice.choice(['json', 'js', 'html', 'len', 'not', 'index', 'printf'])} {word} }}}}",
            f"{{{{ if {word}",
        ])  # fmt: skip


def _schema(dice: random.Random, depth: int = 0) -> Any:
    """Return a random value in place of a JSON schema."""
    if depth == 3 or (depth and dice.random() < 0.4):
        return dice.choice([None, 1, "text", [], {}, [1], ["string"], True, {"a": None}])
    keys = ["name", "parameters", "properties", "type", "required", "enum", "anyOf", "items", "$defs"]
    return {key: _schema(dice, depth + 1) for key in dice.sample(keys, 4)}


@cache
def _renderer() -> Renderer:
    return Renderer()


def fuzz(dice: random.Random, folder: Path) -> None:
    grammar = _Grammar(dice)
    is_go = dice.random() < 0.4
    text = "".join(grammar.go() if is_go else grammar.jinja() for _ in range(dice.randint(1, 4)))
    text = text.encode(errors="replace").decode() if dice.random() < 0.9 else text
    (folder / "template").write_text(text, errors="replace")
    roles = ["system", "user", "assistant", "tool", ""]
    messages = [
        Message(role=dice.choice(roles), content=dice.choice(["", "hello", "<b>é</b>" * 9999]))
        for _ in range(dice.randint(1, 6))
    ]
    tools = dice.choice(
        [[], [{}], [{"function": _schema(dice)}], [_schema(dice) | {"function": {"name": "f"}}]]
    )
    template = ChatTemplate(text=text, is_go=is_go)
    prompt = Chat(messages=messages, tools=tools)
    think = dice.choice([None, True, False, "high"])
    try:
        with _renderer().rendering(template, prompt, think) as rendering:
            for start in range(len(messages)):
                rendering.text(start).encode()
    except RendererError as error:
        raise AssertionError("a defect of the renderer, not of the template") from error
