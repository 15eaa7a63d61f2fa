"""An answer with everything in it, and ways to cut it into pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from puna.protocol import CallDelta
from puna.server.jobs.service import AnswerDelta

#: Thinking, text, calls and text.
ANSWER: Sequence[AnswerDelta] = (
    AnswerDelta("", "hm, well"),
    AnswerDelta("I look."),
    AnswerDelta("", calls=[CallDelta(0, "a", "f", '{"x": 1}')]),
    AnswerDelta("", calls=[CallDelta(1, "b", "g", "{}")]),
    AnswerDelta("Done."),
)


def cut(pieces: Sequence[AnswerDelta], sizes: Sequence[int]) -> Iterator[AnswerDelta]:
    """The answer in pieces of these sizes, in characters; what is left over comes in whole."""
    left = list(sizes)
    for piece in pieces:
        call = piece.calls[0] if piece.calls else None
        text = piece.text or piece.thinking or (call.arguments if call else "")
        begin = True
        while text:
            size = left.pop() if left else len(text)
            part, text = text[:size], text[size:]
            if call:
                head = (call.id, call.name) if begin else ("", "")
                yield AnswerDelta("", calls=[CallDelta(call.index, *head, part)])
            else:
                yield AnswerDelta(part if piece.text else "", part if piece.thinking else "")
            begin = False
