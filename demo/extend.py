"""More words for a vocabulary in use, whose ids and, nearly everywhere, tokenisation stay the same.

In JSON and calls, words follow a quotation mark or bracket without a space: " Paris" is a token, "Paris" is
not.
"""

from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from demo.vocabulary import PATTERN

SPACE = "Ġ"  # as byte-level BPE writes it

WORDS = (
    "Tools", "tool", "tools", "<tool", "_call", ">\n", "</", '{"', ' {"', '":', '",', '"}', '"}\n',
    '"}}\n', "}}\n", "}\n", ")\n", "name", "arguments", "calculator", "calculate", "expression",
    "(expression", "operation", " operation", "(a", "(name", "(city", "(location", "weather", "get",
    "_weather", "city", "location", "number", "integer", "add", "subtract", "multiply", "divide",
    "|subtract", "|multiply", "|divide", "age", "count", "colour", "color", "result", "temperature",
    "condition", "degrees", "current", "_current", "place", "town", "quantity", "thing", "object",
    "item", "JSON", "Extract", "°C", "sunny", "rainy", "cloudy", "windy", "foggy", "snowy", "stormy",
    "clear", "warm", "hot", "cold", "cool", "dry", "mild", "humid", "icy", "red", "blue", "green",
    "yellow", "black", "white", "brown", "orange", "purple", "pink", "grey", "apples", "balls",
    "books", "cups", "hats", "stars", "flowers", "cars", "boats", "keys", "coins", "shells", "candles",
    "buttons", "socks", "stones", "balloons", "pencils", "birds", "cats", "dogs", "horses", "fish",
)  # fmt: skip


def tokenizer_of(tokens: Sequence[str], merges: Sequence[str], control: int) -> Tokenizer:
    """Return the byte-level BPE tokenizer of a file's tokens, the first `control` of them control tokens."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(tokens[:control]))
    return tokenizer


def extended(
    tokens: Sequence[str], merges: Sequence[str], control: int, words: Sequence[str] = WORDS
) -> tuple[list[str], list[str]]:
    """Return the tokens and merges, extended at their ends.

    First, every token of a space and a name gets a twin without the space, made of the same parts; then each
    of `words` becomes a token.
    """
    tokens, merges, known = list(tokens), list(merges), set(tokens)

    def merge(left: str, right: str) -> None:
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append(f"{left} {right}")

    for left, _, right in (pair.partition(" ") for pair in tuple(merges)):
        if left[:1] == SPACE and (left + right)[1:2].isupper() and left[1:] in known:
            merge(left[1:], right)
    for word in words:
        first, *rest = tokenizer_of(tokens, merges, control).encode(word).tokens
        for part in rest:
            merge(first, part)
            first += part
    return tokens, merges


def extended_embeddings(old: Tensor, tokens: Sequence[str], merges: Sequence[str]) -> Tensor:
    """Extend the rows of the first tokens, [old, hidden], to all tokens, [all, hidden].

    A twin starts as its token with a space, shifted by the average difference of words with and without one;
    any other token starts as the mean of its two parts.
    """
    known = {token: number for number, token in enumerate(tokens)}
    pairs = [
        (known[token], known[token[1:]])
        for token in tokens[: len(old)]
        if token[:1] == SPACE and len(token) > 2 and known.get(token[1:], len(old)) < len(old)
    ]
    moved = torch.stack([old[without] - old[spaced] for spaced, without in pairs]).mean(0)
    made = dict(zip(("".join(m.split(" ")) for m in merges), (m.split(" ") for m in merges), strict=True))
    rows = list(old)
    for token in tokens[len(old) :]:
        spaced = known.get(SPACE + token, len(old))
        left, right = made[token]
        mean = (rows[known[left]] + rows[known[right]]) / 2
        rows.append(old[spaced] + moved if spaced < len(old) else mean)
    return torch.stack(rows)
