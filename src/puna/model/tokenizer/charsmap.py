"""The table of a SentencePiece normaliser: which characters of a text are replaced by which.

The format (sentencepiece's normalizer.cc): the size of a trie in bytes, the trie, and the replacements, each
ending in a zero byte. The trie is a double array (darts-clone) of 32-bit units. From a unit at index i the
unit of the next byte b is at `i ^ offset ^ b`, and where a key ends, `i ^ offset` holds the place of its
replacement.
"""

from __future__ import annotations

import numpy as np

from puna.errors import TokenizerError

_SIZE_BYTES = 4
_IS_VALUE = np.uint32(1 << 31)
_HAS_VALUE = np.uint32(1 << 8)
_WIDE = np.uint32(1 << 9)
#: No character becomes more bytes than this. Unicode's longest compatibility form has 33.
LONGEST_REPLACEMENT = 128


def checked(charsmap: bytes, where: str) -> bytes:
    """`charsmap`, when nothing that follows it leaves it. Raises TokenizerError otherwise.

    The library that reads it checks nothing on its way, and a stranger has written it.
    """
    size = int.from_bytes(charsmap[:_SIZE_BYTES], "little")
    if len(charsmap) < _SIZE_BYTES + size or size % 4 or not size:
        raise TokenizerError(f"{where}: the trie has {size} bytes, which do not fit")
    units = np.frombuffer(charsmap[_SIZE_BYTES : _SIZE_BYTES + size], "<u4")
    replacements = np.frombuffer(charsmap[_SIZE_BYTES + size :], np.uint8)
    if not replacements.size or replacements[-1]:
        raise TokenizerError(f"{where}: the last replacement does not end")
    inner = np.flatnonzero((units & _IS_VALUE) == 0).astype(np.uint32)
    found = units[inner]
    children = inner ^ ((found >> np.uint32(10)) << ((found & _WIDE) >> np.uint32(6)))
    if children.size and int((children | np.uint32(0xFF)).max()) >= len(units):
        raise TokenizerError(f"{where}: a step leaves the trie")
    places = units[children[(found & _HAS_VALUE) != 0]] & ~_IS_VALUE
    if places.size:
        if int(places.max()) >= len(replacements):
            raise TokenizerError(f"{where}: a key has no replacement")
        ends = np.flatnonzero(replacements == 0)
        if int((ends[np.searchsorted(ends, places)] - places).max()) > LONGEST_REPLACEMENT:
            raise TokenizerError(f"{where}: a replacement has more than {LONGEST_REPLACEMENT} bytes")
    return charsmap
