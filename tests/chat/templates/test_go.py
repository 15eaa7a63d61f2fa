"""The Go template language, against the documentation and behaviour of Go's text/template."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.chat.templates.go import GoTemplate
from puna.errors import TemplateError, TemplateLimitError

DATA: dict[str, Any] = {
    "S": "text",
    "Empty": "",
    "N": 3,
    "Zero": 0,
    "F": 1.5,
    "Yes": True,
    "No": False,
    "Nil": None,
    "L": ["a", "b", "c"],
    "Nothing": [],
    "M": {"b": 2, "a": 1},
    "Deep": {"X": {"Y": "y"}},
    "Html": '<a href="x">\'&',
}


def run(template: str) -> str:
    return GoTemplate(template).execute(DATA)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain }} text {", "plain }} text {"),
        ("{{ .S }}", "text"),
        ("{{.S}}{{ .Deep.X.Y }}", "texty"),
        ("{{ $.S }}{{ $x := .Deep }}{{ $x.X.Y }}", "texty"),
        ("{{ (index .L 0) }}{{ (.Deep).X.Y }}", "ay"),
        # White space
        ("a \n {{- .S -}} \t b", "atextb"),
        ("a {{- /* c */ -}} b", "ab"),
        ("a {{/* c }} */}} b", "a  b"),
        ("{{ 3 -}} < {{- 4 }}", "3<4"),
        ("{{-3}}", "-3"),
        ("{{\n.S\n}}", "text"),
        # How values print
        ("{{ .Missing }}|{{ .Missing.More }}|{{ .Nil }}", "<no value>|<no value>|<no value>"),
        ("{{ .Yes }}{{ .No }}{{ .N }}{{ .F }}", "truefalse31.5"),
        ("{{ .L }}{{ .Nothing }}{{ .M }}", "[a b c][]map[a:1 b:2]"),
        ("{{ 1000000.0 }} {{ 123456.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1e21 }} {{ 2.50 }}",
         "1e+06 123456 0.0001 1e-05 1e+21 2.5"),
        ("{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 017 }} {{ 1_000 }} {{ 'a' }} {{ '\\n' }} {{ '\\x41' }}",
         "31 5 15 15 1000 97 10 65"),
        ('{{ "q\\"\\t\\u00e9\\x41\\101" }}{{ `raw\\n` }}', 'q"\té' + "AA" + "raw\\n"),
        ("{{ true }}{{ false }}", "truefalse"),
        # Truth
        ("{{ if .S }}1{{ end }}{{ if .Empty }}2{{ end }}{{ if .Zero }}3{{ end }}{{ if .L }}4{{ end }}", "14"),
        ("{{ if .Nothing }}5{{ end }}{{ if .Nil }}6{{ end }}{{ if .Missing }}7{{ end }}", ""),
        ("{{ if .No }}a{{ else if .Yes }}b{{ else }}c{{ end }}", "b"),
        ("{{ if .No }}a{{ else if .Zero }}b{{ else if .Nil }}c{{ else }}d{{ end }}", "d"),
        # range
        ("{{ range .L }}{{ . }},{{ end }}", "a,b,c,"),
        ("{{ range $i, $e := .L }}{{ $i }}{{ $e }}{{ end }}", "0a1b2c"),
        ("{{ range $e := .L }}{{ $e }}{{ $.N }}{{ end }}", "a3b3c3"),
        ("{{ range .M }}{{ . }}{{ end }}{{ range $k, $v := .M }}{{ $k }}{{ $v }}{{ end }}", "12a1b2"),
        ("{{ range .Nothing }}x{{ else }}none{{ end }}{{ range .Nil }}x{{ else }}nil{{ end }}", "nonenil"),
        ("{{ range .L }}{{ if eq . \"b\" }}{{ continue }}{{ end }}{{ . }}{{ end }}", "ac"),
        ("{{ range .L }}{{ if eq . \"b\" }}{{ break }}{{ end }}{{ . }}{{ end }}!", "a!"),
        ("{{ range 3 }}{{ . }}{{ end }}", "012"),
        # with
        ("{{ with .Deep.X }}{{ .Y }}{{ end }}{{ with .Empty }}a{{ else }}b{{ end }}", "yb"),
        ("{{ with $v := .S }}{{ $v }}{{ . }}{{ end }}", "texttext"),
        ("{{ with .No }}1{{ else with .N }}{{ . }}{{ end }}", "3"),
        # variables
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21"),
        ("{{ $last := \"\" }}{{ range .L }}{{ $last = . }}{{ end }}{{ $last }}", "c"),
        ("{{ $i := 9 }}{{ range $i, $e := .L }}{{ end }}{{ $i }}", "9"),
        # templates
        ('{{ define "t" }}<{{ . }}{{ $ }}>{{ end }}{{ template "t" .S }}{{ template "t" 1 }}',
         "<texttext><11>"),
        ('{{ block "b" .Deep }}{{ .X.Y }}{{ end }}', "y"),
        ('{{ template "late" . }}{{ define "late" }}x{{ end }}', "x"),
        # pipelines and functions
        ('{{ .S | printf "%s-%s" "a" | len }}', "6"),
        ('{{ printf "%d %s %v %q %t %5.1f|%-5s|%05d|%x|%c|%%" 1 "a" .L "q" true 3.14159 "l" 42 255 65 }}',
         '1 a [a b c] "q" true   3.1|l    |00042|ff|A|%'),
        ('{{ printf "%d" "x" }} {{ printf "%s" }} {{ printf "a" 1 }} {{ printf "9%" }}',
         "%!d(string=x) %!s(MISSING) a%!(EXTRA int=1) 9%!(NOVERB)"),
        ('{{ print 1 2 "a" "b" 3 true }}|{{ println 1 "a" }}', "1 2ab3 true|1 a\n"),
        ("{{ and .S .N }}{{ and .Empty .N }}|{{ or .Empty .S }}{{ or .Empty .Zero }}", "3|text0"),
        ("{{ not .S }}{{ not .Nil }}", "falsetrue"),
        ("{{ or .S (index .L 99) }}{{ and .Empty (index .L 99) }}", "text"),
        ('{{ eq .N 3 }}{{ eq .S "a" "text" }}{{ ne .N 4 }}', "truetruetrue"),
        ('{{ lt 1 2 }}{{ le 2 2 }}{{ gt "b" "a" }}{{ ge 1 2 }}', "truetruetruefalse"),
        ("{{ eq .Missing nil }}{{ eq .Nil nil }}{{ eq .S nil }}{{ eq .Missing .S }}", "truetruefalsefalse"),
        ('{{ len .S }}{{ len .L }}{{ len .M }}{{ len "é" }}', "4322"),
        ('{{ index .L 1 }}{{ index .M "b" }}{{ index .M "z" }}{{ index .Deep "X" "Y" }}{{ index .S 0 }}',
         "b2<no value>y116"),
        ('{{ slice .L 1 }}{{ slice .L 1 2 }}{{ slice .S 1 3 }}{{ slice .S }}', "[b c][b]extext"),
        ("{{ html .Html }}|{{ js .Html }}|{{ urlquery .Html }}",
         "&lt;a href=&#34;x&#34;&gt;&#39;&amp;|\\u003Ca href\\u003D\\\"x\\\"\\u003E\\'\\u0026|"
         "%3Ca+href%3D%22x%22%3E%27%26"),
        ("{{ json .Html }}{{ json .M }}{{ json .Nil }}{{ json .L }}",
         '"\\u003ca href=\\"x\\"\\u003e\'\\u0026"{"a":1,"b":2}null["a","b","c"]'),
        ("{{ if and .S (or .Empty .N) (not .No) }}yes{{ end }}", "yes"),
        ("{{ if (eq (len .L) 3) }}three{{ end }}", "three"),
        ("{{ $n := len (slice .L 1) }}{{ $n }}", "2"),
    ],
)  # fmt: skip
def test_a_template_prints_the_same_as_in_go(template: str, text: str) -> None:
    assert run(template) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ .S ", "line 1, column 1: unclosed action"),
        ("a\nb {{ if .S }}", r"line 2, column 6: unexpected end of the template: \{\{if\}\} is not closed"),
        ("{{ end }}", "unexpected {{end}}"),
        ("{{ else }}", "unexpected {{else}}"),
        ("{{ if .S }}{{ else }}{{ else }}{{ end }}", "expected end; found {{else}}"),
        ("{{ if }}x{{ end }}", "missing value for if"),
        ("{{ }}", "missing value for command"),
        ("{{ nofunction }}", 'function "nofunction" not defined'),
        ("{{ messages }}", 'function "messages" not defined'),
        ("{{ $x }}", 'undefined variable "\\$x"'),
        ("{{ if $x := 1 }}{{ end }}{{ $x }}", 'undefined variable "\\$x"'),
        ("{{ $x = 1 }}", 'undefined variable "\\$x"'),
        ('{{ template "x" . }}', 'template "x" is not defined'),
        ('{{ define "x" }}{{ end }}{{ template "x" }}', "needs an argument"),
        ("{{ break }}", r"\{\{break\}\} outside \{\{range\}\}"),
        ('{{ range .L }}{{ block "b" . }}{{ continue }}{{ end }}{{ end }}', "outside {{range}}"),
        ('{{ if true }}{{ define "x" }}{{ end }}{{ end }}', "unexpected {{define}}"),
        ('{{ "abc }}', "unterminated quoted string"),
        ("{{ `abc }}", "unterminated raw quoted string"),
        ("{{ 'ab' }}", "unterminated character constant|malformed"),
        ("{{ (.S }}", "unclosed left paren"),
        ("{{ .S) }}", "unexpected right paren"),
        ("{{/* x }}", "unclosed comment"),
        ("{{ /* x */ }}", "unrecognized character in action: '/'"),
        ("{{/* x */ y }}", "comment ends before closing delimiter"),
        ("{{ .S | 3 }}", "non executable command in pipeline stage 2"),
        ("{{ .S | }}", "missing value for command"),
        ("{{ | .S }}", "missing value for command"),
        ("{{ 3.X }}", "unexpected|bad"),
        ("{{ 12a }}", "bad character"),
        ("{{ .S.3 }}", "unexpected"),
        ('{{ "\\z" }}', "unknown escape"),
        ("{{ 99999999999999999999 }}", "integer overflow"),
        ("{{ range $a, $b, $c := .L }}{{ end }}", "too many declarations"),
        ("{{ nil }}", "nil is not a command"),
        ("{{ .S 1 }}", "S has arguments but is not a function"),
        ("{{ .N.X }}", "can't evaluate field X in type int"),
        ("{{ .Nil.X }}", "nil pointer evaluating .X"),
        ("{{ eq 1 2.0 }}", "incompatible types for comparison"),
        ("{{ eq .L .L }}", "non-comparable"),
        ("{{ lt .L 1 }}", "invalid type for comparison"),
        ("{{ index .L 3 }}", "index out of range: 3"),
        ('{{ index .L "a" }}', "cannot index with type string"),
        ("{{ slice .L 2 1 }}", "invalid slice index: 2 > 1"),
        ("{{ len 3 }}", "len of type int"),
        ("{{ len }}", "wrong number of args for len: want 1 got 0"),
        ("{{ not 1 2 }}", "wrong number of args for not: want 1 got 2"),
        ("{{ range .N | len }}{{ end }}", "len of type int"),
        ("{{ range .S }}{{ end }}", "range can't iterate over string"),
        ("{{ call .S }}", "not a function"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(template: str, message: str) -> None:
    plain = message if re.search(r"[\\|]", message) else re.escape(message)
    with pytest.raises(TemplateError, match=r"template error: line \d+, column \d+: ") as caught:
        run(template)
    assert re.search(plain, str(caught.value)), caught.value


@pytest.mark.parametrize(
    "template",
    [
        '{{ define "x" }}{{ template "x" . }}{{ end }}{{ template "x" . }}',
        "{{ range 100000 }}{{ printf \"%9999s\" .  }}{{ end }}",
        "{{ if " + "(" * 5000 + "1" + ")" * 5000 + " }}{{ end }}",
        "{{ if true }}" * 5000 + "{{ end }}" * 5000,
        "{{ if true }}x{{ else " + "if true }}x{{ else " * 5000 + "}}{{ end }}",
        "x" * 2_000_000,
    ],
)  # fmt: skip
def test_a_template_that_nests_too_deeply_or_writes_too_much_is_stopped(template: str) -> None:
    with pytest.raises((TemplateError, TemplateLimitError)):
        run(template)


def test_identifiers_are_all_names_used_anywhere() -> None:
    template = GoTemplate(
        '{{ define "d" }}{{ .InDefine }}{{ end }}{{ if or .A (eq .B.C 1) }}{{ $x := .D }}{{ $x.E }}{{ end }}'
        '{{ range $i, $e := .F }}{{ template "d" .G }}{{ else }}{{ (.H).I }}{{ end }}'
    )
    assert template.identifiers >= set("abcdefghi") | {"indefine"}


_PIECES = st.sampled_from([
    "{{", "}}", "{{-", " -}}", " ", "if", "else", "end", "range", "with", "define", "template", "block",
    "break", "continue", "nil", ".", ".S", ".L", ".M", ".Deep.X", "$", "$x", ":=", "=", "|", "(", ")", ",",
    '"a"', "`b`", "'c'", "1", "-2", "3.5", "true", "eq", "and", "or", "not", "len", "index", "slice",
    "print", "printf", "json", "/*", "*/", "text", "\n", '"%d"', "é", "{{ .S }}", "{{ if .L }}",
    "{{ end }}", "{{ range .L }}", "{{ else }}", "{{ $x := .N }}", "{{ $x }}",
])  # fmt: skip


@pytest.mark.slow
@given(st.lists(_PIECES, max_size=30).map("".join) | st.text(max_size=60))
@settings(max_examples=600)
def test_any_text_is_a_template_or_a_template_error(text: str) -> None:
    try:
        run(text)
    except TemplateError as error:
        said = str(error)
    else:
        return
    assert said.startswith("template error: ")
