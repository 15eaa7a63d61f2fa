"""Ways to damage a file that was valid."""

from __future__ import annotations

import random

#: Values that tend to break lengths, counts and offsets.
WORDS = (
    0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 127, 128, 255, 256, 2**15, 2**16, 2**20, 2**24, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**33, 2**48, 2**53, 2**60, 2**61 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip


def damaged(dice: random.Random, content: bytes, *, most: int = 8) -> bytes:
    """Return `content` after 1 to `most` random changes of its bytes, numbers, pieces or length."""
    buffer = bytearray(content)
    for _ in range(dice.randint(1, most)):
        dice.choice(_CHANGES)(dice, buffer)
    return bytes(buffer)


def _change_byte(dice: random.Random, buffer: bytearray) -> None:
    if buffer:
        buffer[dice.randrange(len(buffer))] = dice.randrange(256)


def _flip_bit(dice: random.Random, buffer: bytearray) -> None:
    if buffer:
        buffer[dice.randrange(len(buffer))] ^= 1 << dice.randrange(8)


def _set_number(dice: random.Random, buffer: bytearray) -> None:
    size = dice.choice((1, 2, 4, 8))
    if len(buffer) >= size:
        at = dice.randrange(len(buffer) - size + 1)
        buffer[at : at + size] = (dice.choice(WORDS) % 2 ** (8 * size)).to_bytes(size, "little")


def _piece(dice: random.Random, buffer: bytearray) -> slice:
    start = dice.randint(0, len(buffer))
    return slice(start, min(start + dice.choice((1, 4, 8, 64, 1024)), len(buffer)))


def _remove(dice: random.Random, buffer: bytearray) -> None:
    del buffer[_piece(dice, buffer)]


def _repeat(dice: random.Random, buffer: bytearray) -> None:
    piece = _piece(dice, buffer)
    buffer[piece.stop : piece.stop] = buffer[piece]


def _move(dice: random.Random, buffer: bytearray) -> None:
    piece = _piece(dice, buffer)
    taken = buffer[piece]
    del buffer[piece]
    at = dice.randint(0, len(buffer))
    buffer[at:at] = taken


def _insert(dice: random.Random, buffer: bytearray) -> None:
    at = dice.randint(0, len(buffer))
    buffer[at:at] = dice.randbytes(dice.choice((1, 4, 8, 40)))


def _cut(dice: random.Random, buffer: bytearray) -> None:
    if dice.random() < 0.2:  # rarely, or little would be left to change
        del buffer[dice.randint(0, len(buffer)) :]


_CHANGES = (_change_byte, _flip_bit, _set_number, _set_number, _remove, _repeat, _move, _insert, _cut)
