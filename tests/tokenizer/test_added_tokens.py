"""Finding added tokens in text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puna.tokenizer.tokenizer import AddedTokens, Stripping


def leftmost_longest(text: str, ids: dict[str, int]) -> list[str | int]:
    """Find added tokens directly, one character at a time."""
    found: list[str | int] = []
    at = 0
    while at < len(text):
        token = max((t for t in ids if text.startswith(t, at)), key=len, default=None)
        if token is not None:
            found.append(ids[token])
        elif found and isinstance(found[-1], str):
            found[-1] += text[at]
        else:
            found.append(text[at])
        at += len(token) if token else 1
    return found


tokens = st.lists(st.text(alphabet="<|ab>.", min_size=1, max_size=5), max_size=8, unique=True)


@given(words=tokens, text=st.text(alphabet="<|ab>. ", max_size=40))
def test_the_leftmost_longest_token_is_found(words: list[str], text: str) -> None:
    ids = {word: 100 + i for i, word in enumerate(words)}
    assert list(AddedTokens(ids).split(text)) == leftmost_longest(text, ids)


def test_whitespace_is_removed_around_tokens_that_strip_it() -> None:
    added = AddedTokens({"<m>": 1, "<u>": 2}, Stripping(left=frozenset({1}), right=frozenset({2})))
    assert list(added.split("a \n<m> b <u> \n c")) == ["a", 1, " b ", 2, "c"]
    assert list(added.split(" <m><u> ")) == [1, 2]
