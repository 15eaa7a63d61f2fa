"""Pre-tokenizers, compared with the regex engine they were written for and with published splits."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from puna.tokenizer.patterns import BY_NAME, DEFAULT, LINES, Digits, PreTokenizer, splitter

# Grouping of digits, as written in the original tokenizers.
ORIGINALS = {
    "superbpe": r"(?=(\d{3})+(?!\d))",
    "tiny_aya": r"\d{1,3}(?=(?:\d{3})*\b)",
    "cohere2moe": r"\d{1,3}(?=(?:\d{3})*\b)",
    "afmoe": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
}

TEXTS = [
    "In 2024 there are 366 days",
    "Hello    World",
    "Hello, WORLD!! How's it going? WE'LL SEE, I'Ve 'S",
    "a\r\n\r\n  b\n\n\n\tc \u3000\u00a0 d\x1c\x85 \n ",
    "12345 1234567abc ３４５６ ٣٤٥٦ 12²3 ½",
    "getUserName HTMLParser iPhone ǅ E=mc² $5+3<=`x`^~|",
    "日本語カタカナ한국어 мир Ελληνικά हिन्दी ไทย ქართული Հայ ⴀⴁ",
    "e\u0301\u0302 \u0301 👩\u200d👩 🦙🦙 (「」、。—… ！？",
    "<sentinel:12> IMGIMGABCZ ¿qué? //path/ \\n ...\n)\r",
]


def pieces(pre: PreTokenizer, text: str) -> list[str]:
    found = [text]
    for step in pre.steps:
        found = [piece for part in found for piece in splitter(step)(part) if piece]
    return found


def reference(name: str, pre: PreTokenizer) -> Callable[[str], list[str]]:
    """Return the same steps in Oniguruma, the regex engine of Hugging Face's tokenizers."""
    steps = []
    for step in pre.steps:
        pattern = ORIGINALS[name] if isinstance(step, Digits) else step
        # Oniguruma has no \U escape.
        pattern = re.sub(r"\\(?:u(.{4})|U(.{8}))", lambda m: chr(int(m[1] or m[2], 16)), pattern)
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    sequence = pre_tokenizers.Sequence(steps)
    return lambda text: [piece for piece, _ in sequence.pre_tokenize_str(text) if piece]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_pre_tokenizer_splits_like_oniguruma(name: str) -> None:
    expected = reference(name, BY_NAME[name])
    for text in TEXTS:
        assert pieces(BY_NAME[name], text) == expected(text)


# Blocks with characters that have long been stable, because engines support different Unicode versions.
settled = st.text(
    st.one_of(
        st.characters(min_codepoint=9, max_codepoint=0x17F),
        st.sampled_from("  \n\r\t'aZ09．½२²漢かカ한яЯΩé\u0301\u200d\u3000…，🦙ǅºॐ"),
    ),
    max_size=40,
)
DISTINCT = sorted({pre.steps: name for name, pre in BY_NAME.items()}.values())
REFERENCES = {name: reference(name, BY_NAME[name]) for name in DISTINCT}


@settings(deadline=None, max_examples=150)
@given(text=settled)
def test_random_text_is_split_like_oniguruma(text: str) -> None:
    for name in DISTINCT:
        assert pieces(BY_NAME[name], text) == REFERENCES[name](text), name


@settings(deadline=None, max_examples=50)
@given(text=st.text())
def test_pieces_add_up_to_the_text(text: str) -> None:
    for name in DISTINCT:
        assert "".join(pieces(BY_NAME[name], text)) == text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [  # from the reference's own tests and the models' documentation
        ("llama-bpe", "In 2024 there are 366 days", "In| |202|4| there| are| |366| days"),
        ("llama-bpe", "Hello    World", "Hello|   | World"),
        (
            "llama-bpe",
            "Hello, WORLD!! How's it going?",
            "Hello|,| WORLD|!!| How|'s| it| going|?",
        ),
        ("qwen2", "x 2024", "x| |2|0|2|4"),
        ("kimi-k2", "getUserName", "get|User|Name"),
        ("gemma4", "a b\n\nc", "a b|\n\n|c"),
        ("tiny_aya", "1234567 x", "1|234|567| x"),
    ],
)
def test_texts_are_split_as_published(name: str, text: str, expected: str) -> None:
    assert pieces(BY_NAME[name], text) == expected.split("|")


def test_the_default_is_that_of_llama_cpp() -> None:
    assert BY_NAME["default"] is DEFAULT
    assert pieces(DEFAULT, "a,, b 12345") == ["a", ",,", " b", " ", "123", "45"]
    assert LINES is BY_NAME["gemma4"]
