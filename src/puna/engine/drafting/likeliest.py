"""The choice of greedy drafts, where the logits are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.ops.sampling import Draw

if TYPE_CHECKING:
    from puna.ops import Array, Backend


def likeliest_tokens(ops: Backend, logits: Array, vocab_size: int) -> list[int]:
    """Return the likeliest token below `vocab_size` of each row of logits [rows, vocab or more].

    Logits that allow no choice, NaN for instance, give token 0: a draft may be wrong.
    """
    rows = logits[:, :vocab_size]
    found = ops.choose([Draw(rows[row], temperature=0.0) for row in range(len(rows))])
    return [token or 0 for token in found]
