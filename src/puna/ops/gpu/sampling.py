"""The choice of tokens from logits on a device.

The device finds the largest logits of each row, after changes and masks, in ascending order of id. The host
draws from those as `puna.ops.sampling` defines it, in float64. It copies a whole row only if that is not
enough: for options that look at all tokens, and if too many are equal or needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puna.ops import sampling
from puna.ops.backend import Backend
from puna.ops.gpu.staging import received
from puna.ops.sampling import Draw, Likeliest

#: Maximum number of tokens that a device finds in a row.
MOST: Final = 1024
#: Up to this size of the vocabulary, all possible tokens can be found.
SMALL: Final = 2048
#: Tokens found in larger vocabularies without top-k, since most draws need no more.
_USUALLY_ENOUGH: Final = 256
#: At most one token in this many is found so.
_SHARE: Final = 64


@dataclass(frozen=True)
class Wanted:
    """A row of logits, and how many of the largest ones to find."""

    logits: Tensor  # float32 [vocabulary]
    count: int  # at least 1
    temperature: float = 1.0
    token: int = 0  # whose logit is wanted as well
    allowed: NDArray[np.int32] | None = None  # as in `Draw`
    changes: sampling.Changes | None = None


@dataclass(frozen=True)
class Leading:
    """The tokens of a row whose logits reach a limit: at least as many as wanted, or all that are possible.

    Possible are those whose logits are above -infinity.
    """

    ids: NDArray[np.int32]  # ascending
    logits: NDArray[np.float32]
    whole: bool  # whether these are all that are possible
    listed: float  # sum of their e ** ((logit - largest) / temperature)
    total: float  # the sum over the row; NaN if it has NaN or +infinity
    logit: float  # of the token asked about
    cut: bool = False  # whether more tokens reach the limit than there was room for: the last are missing


Find = Callable[[Sequence[Wanted]], Iterable[Leading]]


def find_in_torch(rows: Sequence[Wanted]) -> list[Leading]:
    """Return the leading tokens of each row, in plain torch."""
    return [_find(row) for row in rows]


def _adjusted(row: Wanted | Draw) -> Tensor:
    """Return the logits of a row after its changes, -infinity for tokens that are not allowed."""
    logits: Tensor = row.logits  # type: ignore[assignment]
    device = logits.device
    if (changes := row.changes) is not None:
        tokens, added, repeat, lowered = (torch.tensor(each, device=device) for each in changes)
        values = logits[tokens] + added
        values = torch.where(values < 0, values * repeat, values / repeat)
        values = torch.where(lowered == torch.inf, -torch.inf, values - lowered)
        logits = logits.index_copy(0, tokens.long(), values)
    if row.allowed is not None:
        words, token = torch.tensor(row.allowed, device=device), torch.arange(len(logits), device=device)
        logits = torch.where((words[token // 32] >> (token % 32) & 1).bool(), logits, -torch.inf)
    return logits


def _limits(rows: Sequence[Draw]) -> NDArray[np.float32]:
    """Return the least logit that top-n-sigma keeps of each row, as `puna.ops.sampling` defines it."""
    found = []
    for row in rows:
        logits = _adjusted(row)
        possible = logits > -torch.inf
        count = possible.sum()
        mean = torch.where(possible, logits, 0.0).sum(dtype=torch.float64) / count
        distances = torch.where(possible, logits - mean.float(), 0.0)
        deviation = (distances.double().square().sum() / count).sqrt()
        found.append(logits.max() - row.top_n_sigma * deviation)
    return received(torch.stack(found).float()) if found else np.empty(0, np.float32)


def _find(row: Wanted) -> Leading:
    logits = _adjusted(row)
    ordered, ids = logits.sort(descending=True, stable=True)
    possible = int((logits > -torch.inf).sum())
    count = min(row.count, possible)
    kept, places = ids[:count].sort()
    tempered = logits / row.temperature
    weights = (tempered - tempered.max()).double().exp() if possible else torch.zeros_like(tempered)
    return Leading(
        kept.int().cpu().numpy(),
        ordered[:count][places].cpu().numpy(),
        count == possible,
        float(weights[kept].sum()),
        float(weights.sum()),  # infinity - infinity is NaN
        float(logits[row.token]),
    )


def choose(rows: Sequence[Draw], find: Find, host: Backend, device: Backend) -> list[int | None]:
    """Return what `Backend.choose` defines, for rows of `device`; `host` computes on the host."""
    for row in rows:
        _check(row)
    chosen: list[int | None] = [None] * len(rows)
    wanted = [(place, row, count) for place, row in enumerate(rows) if (count := _wanted(row))]
    found = find(
        [
            Wanted(
                row.logits,  # type: ignore[arg-type]
                count,
                max(row.temperature, 1e-7) if row.temperature else 1.0,
                allowed=row.allowed,
                changes=row.changes,
            )
            for _, row, count in wanted
        ]
    )
    limited = [place for place, row, _ in wanted if row.top_n_sigma > 0 and row.temperature > 0]
    limits = dict(zip(limited, _limits([rows[place] for place in limited]), strict=True))
    left = {place for place, row in enumerate(rows) if len(row.logits)}  # to be drawn on the host
    drawn: list[tuple[int, Draw, NDArray[np.int32] | None]] = []  # with the ids of the logits
    for (place, row, _), leading in zip(wanted, found, strict=True):
        ids, logits = leading.ids, leading.logits
        if leading.total != leading.total:
            continue
        if not ids.size or row.temperature == 0:
            left.discard(place)
            chosen[place] = int(ids[np.argmax(logits)]) if ids.size else None
        elif not leading.cut:
            whole = leading.whole
            if place in limits:
                reaching = logits >= limits[place]
                whole |= not reaching.all()  # no other token reaches it
                ids, logits = ids[reaching], logits[reaching]
            draw: Draw | None = row._replace(logits=logits, top_n_sigma=0.0)
            if row.top_k <= 0 and not whole:
                draw = None
                if place not in limits:
                    draw = sampling.among(logits, leading.listed, leading.total, row)
            if draw is not None:
                left.discard(place)
                drawn.append((place, draw._replace(allowed=None, changes=None), ids))
    copied = copy_rows([rows[place].logits for place in left], device)
    drawn += [
        (place, rows[place]._replace(logits=logits), None) for place, logits in zip(left, copied, strict=True)
    ]
    tokens = host.choose([row for _, row, _ in drawn])
    for (place, _, of), token in zip(drawn, tokens, strict=True):
        chosen[place] = int(of[token]) if of is not None and token is not None else token
    return chosen


def _check(row: Draw) -> None:
    """Raise `ValueError` or `IndexError` for what a kernel would read beyond its end."""
    size = len(row.logits)
    if row.allowed is not None and row.allowed.size * 32 < size:
        raise ValueError("choose: there are fewer bits than logits")
    if row.changes is not None and row.changes.tokens.size:
        first, last = row.changes.tokens[0], row.changes.tokens[-1]  # they are ascending
        if first < 0 or last >= size:
            raise IndexError(f"choose: changes of tokens {first} to {last}, and there are {size} logits")


def copy_rows(rows: Sequence[Any], device: Backend) -> list[NDArray[np.float32]]:
    """Return copies of rows of logits on the host, in one transfer."""
    if not rows:
        return []
    every = device.numpy(device.concatenate(rows))
    return np.split(every, np.cumsum([len(row) for row in rows[:-1]]))


def _wanted(row: Draw) -> int:
    """Return how many of the largest logits a row is drawn from; 0 if that cannot be said."""
    size = len(row.logits)
    if row.temperature == 0:
        return min(size, 1)
    if row.top_k > MOST:
        return 0
    if row.top_k > 0:
        return min(row.top_k, size)
    if size <= SMALL:
        return size
    of_all = row.typical_p < 1 or row.dynatemp_range or row.xtc_threshold < 1
    return 0 if of_all else min(_USUALLY_ENOUGH, size // _SHARE)


def likeliest(
    rows: Sequence[tuple[Tensor, int]], count: int, find: Find, host: Backend, device: Backend
) -> list[Likeliest]:
    """Return what `Backend.likeliest` defines, for rows of `device`; `host` computes on the host."""
    found: list[Likeliest | None] = []
    least = max(count, 1)
    given = [Wanted(logits, min(least, MOST, len(logits)), token=token) for logits, token in rows]
    for (logits, _), leading in zip(rows, find(given), strict=True):
        enough = leading.ids.size >= min(least, len(logits)) and not leading.cut
        if leading.total != leading.total or not enough:
            found.append(None)
            continue
        order = np.argsort(-leading.logits, kind="stable")
        largest, order = float(leading.logits[order[0]]), order[:count]
        ids = leading.ids[order].astype(np.int64)
        found.append(Likeliest(largest, leading.total, leading.logit, ids, leading.logits[order]))
    left = [row for row, one in zip(rows, found, strict=True) if one is None]
    copied = zip(copy_rows([logits for logits, _ in left], device), (token for _, token in left), strict=True)
    others = iter(host.likeliest(list(copied), count))
    return [next(others) if one is None else one for one in found]
