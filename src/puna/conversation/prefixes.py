"""Clients whose prompts keep changing early, so that the prefix cache cannot help their conversations.

A prompt continues a conversation if it has most of the messages of one of the client's earlier prompts. It
breaks the prefix if it differs from all of them in the first half of that one: something at its beginning
changes from request to request, such as a date, an id or a checksum. Prompts are compared with those of the
same client only, and a report quotes nothing but the new prompt itself.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from puna.chat.templates.messages import Message
from puna.engine.prefix_tree import Key
from puna.protocol import BrokenPrefix
from puna.tokenizer import Tokenizer

#: Prompts remembered of one client, of all clients, and inputs of all of them together (8 bytes each).
_OF_CLIENT: Final = 8
_PROMPTS: Final = 256
_INPUTS: Final = 2 << 20
#: A prompt that loses fewer inputs is not worth a report.
_LEAST_LOST: Final = 256
#: Consecutive breaks of one conversation from which on they are reported: a single one has other reasons.
_KEEPS_BREAKING: Final = 2
#: Characters of a prompt that a report quotes, the tokens they are taken from, and those before for the word.
_QUOTED: Final = 40
_TOKENS: Final = 24
_TOKENS_BEFORE: Final = 8
_WORD: Final = re.compile(r"\S*\Z")
_POSITIVE: Final = (1 << 62) - 1


@dataclass(eq=False)
class _Remembered:
    """A client's prompt: its inputs, its messages but the system's, and how many breaks in a row it ends."""

    inputs: NDArray[np.int64]
    messages: frozenset[bytes]
    breaks: int


@dataclass
class _Client:
    prompts: list[_Remembered] = field(default_factory=list)  # least recently used first


class PrefixWatch:
    """The latest prompts of each client of one model. Methods may be called from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, _Client] = OrderedDict()  # least recently used first

    def note(self, client: str, messages: Sequence[Message], keys: Sequence[Key]) -> BrokenPrefix | None:
        """Remember a prompt with inputs `keys`, and return its break if its conversation keeps breaking."""
        inputs = np.fromiter(map(_number, keys), np.int64, len(keys))
        prompt = _Remembered(inputs, _digests(messages), 0)
        with self._lock:
            known = self._clients.setdefault(client, _Client())
            self._clients.move_to_end(client)
            shared = max((_common(prompt.inputs, each.inputs) for each in known.prompts), default=0)
            before = _continued(prompt, known.prompts)
            if before is not None:
                known.prompts.remove(before)
                lost = len(before.inputs) - shared
                if lost >= _LEAST_LOST and 2 * shared < len(before.inputs):
                    prompt.breaks = before.breaks + 1
            known.prompts.append(prompt)
            del known.prompts[:-_OF_CLIENT]
            self._forget_oldest()
        if before is None or prompt.breaks < _KEEPS_BREAKING or shared >= len(keys):
            return None
        return BrokenPrefix(token=shared, text=self._quote(keys, shared), lost=lost)

    def _forget_oldest(self) -> None:
        """Forget the clients that were silent longest, and at last the oldest prompts of the only one."""
        while self._is_too_much() and len(self._clients) > 1:
            self._clients.popitem(last=False)
        (newest,) = [*self._clients.values()][-1:]
        while self._is_too_much() and newest.prompts:
            del newest.prompts[0]

    def _is_too_much(self) -> bool:
        prompts = [prompt for client in self._clients.values() for prompt in client.prompts]
        return len(prompts) > _PROMPTS or sum(len(prompt.inputs) for prompt in prompts) > _INPUTS

    def _quote(self, keys: Sequence[Key], place: int) -> str:
        """Return the text from the word on that input `place` is part of."""
        if not isinstance(keys[place], int):
            return "an image"
        begin = max(place - _TOKENS_BEFORE, 0)
        tokens = [key if isinstance(key, int) else key[0] for key in keys[begin : place + _TOKENS]]
        word = _WORD.search(self._tokenizer.decode(tokens[: place - begin]))
        text = (word[0] if word else "") + self._tokenizer.decode(tokens[place - begin :])
        return text if len(text) <= _QUOTED else text[:_QUOTED] + "..."


def _continued(prompt: _Remembered, others: Sequence[_Remembered]) -> _Remembered | None:
    """Return the prompt of which `prompt` has most messages, if it has at least half of them."""
    shared = [(len(prompt.messages & other.messages), place) for place, other in enumerate(others)]
    most, place = max(shared, default=(0, 0))
    return others[place] if most and 2 * most >= len(others[place].messages) else None


def _digests(messages: Sequence[Message]) -> frozenset[bytes]:
    return frozenset(
        hashlib.blake2b(
            repr((message.role, message.content, message.tool_calls)).encode(errors="replace"), digest_size=16
        ).digest()
        for message in messages
        if message.role != "system"
    )


def _number(key: Key) -> int:
    """Return a number for an input: a token's own, and a negative one for parts of images."""
    return key if isinstance(key, int) else -1 - (hash(key) & _POSITIVE)


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Return how many inputs both begin with."""
    count = min(len(one), len(other))
    different = np.flatnonzero(one[:count] != other[:count])
    return int(different[0]) if len(different) else count
