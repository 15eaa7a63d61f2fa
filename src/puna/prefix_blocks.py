"""Digests of how sequences begin, by which a cluster knows which replica remembers a prompt.

The inputs of a sequence are divided into blocks of `BLOCK`. A block's digest covers all inputs up to its end,
so equal digests mean equal beginnings: a prompt shares with a replica all blocks up to the last one whose
digest the replica has. Inputs after the last whole block have none.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

#: Inputs in a block.
BLOCK: Final = 64

#: Identifies an input: its token, and for parts of images the hash of the content too.
Key = int | tuple[int, int]

_MASK = (1 << 64) - 1


def block_digests(keys: Sequence[Key], known: Sequence[int] = ()) -> list[int]:
    """Return the digests, of 64 bits, of all whole blocks of `keys`; `known` are the first of them."""
    digests = list(known)
    for begin in range(len(digests) * BLOCK, len(keys) - BLOCK + 1, BLOCK):
        before = digests[-1] if digests else 0
        values = array("Q", [before])
        for key in keys[begin : begin + BLOCK]:
            if isinstance(key, int):
                values.append(key & _MASK)
            else:
                values.extend((key[0] & _MASK, key[1] & _MASK))
        found = hashlib.blake2b(values.tobytes(), digest_size=8).digest()
        digests.append(int.from_bytes(found, "little"))
    return digests
