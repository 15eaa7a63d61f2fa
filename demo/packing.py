"""The packing of whole documents into training rows: token ids, and which of them are learned."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from demo.vocabulary import BOS, END, START

Encoded = tuple[list[int], list[bool]]
SHORT, LONG = 512, 1024


@dataclass(frozen=True)
class Rows:
    """Packed rows of one length: `tokens` [rows, length + 1]; `learn` [rows, length], for the next token."""

    tokens: np.ndarray
    learn: np.ndarray


def segments(document: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return the parts of a document with control tokens, as (text, learned).

    Only the assistant's messages are learned, without their `given` parts.
    """
    if "text" in document:
        return [(BOS, False), (document["text"] + BOS, True)]
    parts = [(BOS, False)]
    for message in document["messages"]:
        parts.append((f"{START}{message['role']}\n", False))
        given = message.get("given", "")
        parts.append((given, False))
        parts.append((message["content"][len(given) :] + END, message["role"] == "assistant"))
        parts.append(("\n", False))
    return parts


def encode(documents: Sequence[dict[str, Any]], tokenizer: Tokenizer) -> Iterator[Encoded]:
    """Yield the token ids of each document and, for each id, whether it is learned."""
    for start in range(0, len(documents), 2000):
        parts = [segments(d) for d in documents[start : start + 2000]]
        encoded = iter(
            tokenizer.encode_batch_fast(
                [text for part in parts for text, _ in part], add_special_tokens=False
            )
        )
        for part in parts:
            ids: list[int] = []
            learn: list[bool] = []
            for _, learned in part:
                piece = next(encoded).ids
                ids += piece
                learn += [learned] * len(piece)
            yield ids, learn


def pack(
    documents: Iterable[Encoded], seed: int, lengths: tuple[int, int] = (SHORT, LONG)
) -> tuple[Rows, Rows]:
    """Pack rows of the first length, and of the second for longer documents, which are truncated to it."""
    rng = random.Random(seed)
    length, longer = lengths
    short: list[Encoded] = []
    long: list[Encoded] = []
    for ids, learn in documents:
        if len(ids) <= length:
            short.append((ids, learn))
        else:
            long.append((ids[: longer + 1], learn[: longer + 1]))
    rng.shuffle(short)
    rng.shuffle(long)
    # Short documents fill the space after each long one.
    return _fill(short, length, []), _fill(long, longer, short[: 3 * len(long)])


def _fill(documents: list[Encoded], length: int, small: list[Encoded]) -> Rows:
    """Pack by first fit, with a window of open rows; every row holds whole documents."""
    rows: list[Encoded] = []
    open_rows: list[Encoded] = []
    for ids, learn in documents + small:
        for row in open_rows:
            if len(row[0]) + len(ids) <= length + 1:
                row[0].extend(ids)
                row[1].extend(learn)
                break
        else:
            open_rows.append((list(ids), list(learn)))
            if len(open_rows) > 64:
                fullest = max(range(len(open_rows)), key=lambda i: len(open_rows[i][0]))
                rows.append(open_rows.pop(fullest))
    rows += open_rows
    tokens = np.zeros((len(rows), length + 1), np.uint16)
    learned = np.zeros((len(rows), length), bool)
    for i, (ids, learn) in enumerate(rows):
        tokens[i, : len(ids)] = ids
        learned[i, : len(ids) - 1] = learn[1:]
    return Rows(tokens, learned)
