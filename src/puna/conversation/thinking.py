"""Budgets of thinking: the number of tokens that a request names, or the share that belongs to its level."""

from __future__ import annotations

from typing import Final

from puna.chat.templates.messages import Traits
from puna.protocol import Generate

#: By level: the share of the tokens that an answer may have, and the least number of tokens. Other levels,
#: and thinking without a level, have no limit. docs/api.md has this table.
SHARES: Final = {"low": (1 / 8, 128), "medium": (1 / 4, 256), "high": (1 / 2, 512)}


def thinking_budget(request: Generate, traits: Traits, context: int) -> int | None:
    """Return the maximum tokens of thinking in an answer within `context` tokens; None for any number.

    A level sets no limit where the template itself tells it to the model.
    """
    if request.think_budget is not None:
        return request.think_budget
    if not isinstance(request.think, str) or request.think not in SHARES or traits.takes_levels:
        return None
    share, least = SHARES[request.think]
    wanted = request.options.num_predict
    most = min(wanted, context) if wanted > 0 else context
    return max(int(most * share), least)
