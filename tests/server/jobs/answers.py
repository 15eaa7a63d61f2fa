"""An answer with thinking, text and calls, and ways to cut it into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from puna.protocol import CallDelta, Chunk

#: Thinking, text, calls and more text.
ANSWER: Sequence[Chunk] = (
    Chunk(1, "", "hm, well"),
    Chunk(1, "I look."),
    Chunk(1, "", calls=[CallDelta(0, "a", "f", '{"x": 1}')]),
    Chunk(1, "", calls=[CallDelta(1, "b", "g", "{}")]),
    Chunk(1, "Done."),
)


def cut(pieces: Sequence[Chunk], sizes: Sequence[int]) -> Iterator[Chunk]:
    """Cut the answer into chunks of `sizes` characters; what remains of each piece stays whole."""
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
                yield Chunk(1, "", calls=[CallDelta(call.index, *head, part)])
            else:
                yield Chunk(1, part if piece.text else "", part if piece.thinking else "")
            begin = False
