"""The Modelfile grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.store.modelfile import NAMES, ROLES, Instruction, Modelfile, ModelfileError, parse, quoted


def commands(text: str | bytes) -> list[tuple[str, ...]]:
    return [
        (item.name, item.key, item.value) if item.key else (item.name, item.value)
        for item in parse(text).commands
    ]


def test_all_commands_are_parsed() -> None:
    text = '''# a comment
FROM ./model.gguf
from projector.gguf

  # an indented comment
ADAPTER adapter.gguf
LICENSE MIT
PARAMETER temperature 0.7
PARAMETER   stop   <|im_end|>
PARAMETER stop "two words"
TEMPLATE """{{ if .System }}<|system|>
{{ .System }}{{ end }}
"""
SYSTEM You are # no comment here
MESSAGE user Hi there
MESSAGE assistant """Hello
you"""
RENDERER qwen3-coder
PARSER qwen3-coder
REQUIRES v0.14.0
'''
    assert commands(text) == [
        ("from", "./model.gguf"),
        ("from", "projector.gguf"),
        ("adapter", "adapter.gguf"),
        ("license", "MIT"),
        ("parameter", "temperature", "0.7"),
        ("parameter", "stop", "<|im_end|>"),
        ("parameter", "stop", "two words"),
        ("template", "{{ if .System }}<|system|>\n{{ .System }}{{ end }}\n"),
        ("system", "You are # no comment here"),
        ("message", "user", "Hi there"),
        ("message", "assistant", "Hello\nyou"),
        ("renderer", "qwen3-coder"),
        ("parser", "qwen3-coder"),
        ("requires", "v0.14.0"),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("SYSTEM bare", "bare"),
        ("SYSTEM   bare  \t", "bare"),
        ("SYSTEM ", ""),
        ('SYSTEM ""', ""),
        ('SYSTEM """"""', ""),
        ('SYSTEM "quoted"', "quoted"),
        ('SYSTEM "  kept  "', "  kept  "),
        ('SYSTEM """  kept  """', "  kept  "),
        ('SYSTEM "two\nlines"', "two\nlines"),
        ('SYSTEM """\nThis is a\nmultiline system.\n"""', "\nThis is a\nmultiline system.\n"),
        ('SYSTEM "with "inner" quotes"', 'with "inner" quotes'),
        ('SYSTEM """with "inner" quotes"""', 'with "inner" quotes'),
        ('SYSTEM "closed" and on', None),  # text after a closing quote continues the value
        ('SYSTEM "closed" and\non"', 'closed" and\non'),
        ('SYSTEM """one"""\n# comment', "one"),
        ("SYSTEM 'single'", "'single'"),
        ("SYSTEM ends with\"", 'ends with"'),
        ('SYSTEM back\\nslash', "back\\nslash"),
        ("SYSTEM a\u00a0b \U0001f469\u200d\U0001f680", "a\u00a0b \U0001f469\u200d\U0001f680"),
        ("SYSTEM 你好👋", "你好👋"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_value_extends_to_the_line_end_where_its_quotes_close(text: str, value: str | None, end: str) -> None:
    text = f"FROM m{end}{text.replace(chr(10), end)}"
    if value is None:
        with pytest.raises(ModelfileError, match="unexpected EOF: the quote opened on line 2"):
            parse(text)
    else:
        assert parse(text + end).last("system") == value.replace("\n", end)


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    ],
)
def test_encodings_are_recognised(encode) -> None:  # type: ignore[no-untyped-def]
    assert commands(encode("FROM bob\nSYSTEM 你好👋\n")) == [("from", "bob"), ("system", "你好👋")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no FROM line"),
        ("# only\n\nSYSTEM x", "no FROM line"),
        ("FROM m\nBADCOMMAND x", r'\(line 2\): command must be one of "from", "license", .*, or "requires"'),
        ("FROM m\nSYSTM x", r'or "requires" \(did you mean "SYSTEM"\?\)'),
        ("FROM", r"\(line 1\): command must be one of"),
        ("FROM\nm", r"\(line 1\): command must be one of"),
        ("\r\n\r\nFROM: m", r"\(line 3\): command must be one of"),
        ("FROM m\nMESSAGE badguy hi", r'\(line 2\): message role must be one of "system", "user", or "assis'),
        ("FROM m\nMESSAGE User hi", r"\(line 2\): message role must be one of"),
        ("FROM m\nPARAMETER param1", "unexpected EOF"),
        ("FROM m\nPARAMETER ", "unexpected EOF"),
        ("FROM m\nMESSAGE system", "unexpected EOF"),
        ('FROM m\nTEMPLATE """open\nand open', "unexpected EOF"),
        ('FROM m\nTEMPLATE "', "unexpected EOF"),
    ],
)
def test_error_names_the_line(text: str, message: str) -> None:
    with pytest.raises(ModelfileError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain text", "plain text"),
        ("", '""'),
        (" edge ", '" edge "'),
        ("two\nlines", '"two\nlines"'),
        ('two\n"lines"', '"""two\n"lines""""'),
        ('in "the" middle', 'in "the" middle'),
        ('"begins', '""""begins"""'),  # unquoted, it would look like an unclosed quote
    ],
)
def test_values_are_quoted_only_if_necessary(value: str, text: str) -> None:
    assert quoted(value) == text


_VALUE = st.text(st.sampled_from(list("a \"\n\r\t'#é\u00a0\u2028\\")), max_size=12) | st.text(max_size=20)
_NAMED = st.builds(
    Instruction, st.sampled_from([n for n in NAMES if n not in ("parameter", "message")]), _VALUE
)
_PARAMETER = st.builds(
    lambda key, value: Instruction("parameter", value, key), st.sampled_from(["stop", "top_k", "x1"]), _VALUE
)
_MESSAGE = st.builds(lambda role, value: Instruction("message", value, role), st.sampled_from(ROLES), _VALUE)


@given(st.lists(_NAMED | _PARAMETER | _MESSAGE, max_size=6))
def test_written_modelfile_parses_to_the_same_commands(items: list[Instruction]) -> None:
    modelfile = Modelfile((Instruction("from", "base:7b"), *items))
    try:
        text = str(modelfile)
    except ModelfileError:
        # Refused only where the grammar has no form: quotes around FROM, escaped quotes at a line's end.
        assert any('"' in item.value or item.name == "from" for item in items)
        return
    assert parse(text) == modelfile
    assert parse(text.encode()) == modelfile


@given(st.text(st.sampled_from(list('FROMSYTE am#"\n\r\t ')), max_size=40) | st.binary(max_size=40))
def test_any_text_parses_or_raises_a_modelfile_error(text: str | bytes) -> None:
    try:
        modelfile = parse(text)
    except ModelfileError:
        return
    assert modelfile.values("from")


def test_error_shortens_a_long_key() -> None:
    with pytest.raises(ModelfileError) as refused:
        parse("FROM m\nPARAMETER " + "9" * 10_000)
    assert len(str(refused.value)) < 200
