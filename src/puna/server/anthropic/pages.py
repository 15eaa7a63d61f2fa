"""Lists of Anthropic's API, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from puna.errors import RequestError, shown

#: Anthropic's default and largest page.
_PAGE: Final = 20
_LARGEST_PAGE: Final = 1000


class Listed(Protocol):
    """An item of a list, with the id that names it."""

    id: str


T = TypeVar("T", bound=Listed)
P = TypeVar("P")

#: The parameters that choose a page.
QUERY: Final = ("after_id", "before_id", "limit")


def page(items: Sequence[T], query: Mapping[str, str], make: Callable[..., P]) -> P:
    """Return the page after or before the item that `query` names, by its `id`, as `make` builds it.

    Raises `RequestError`.
    """
    ids = [item.id for item in items]
    limit = _limit(query.get("limit"))
    begin, end = 0, len(ids)
    if after := query.get("after_id"):
        begin = _place(ids, "after_id", after) + 1
    if before := query.get("before_id"):
        end = _place(ids, "before_id", before)
        found = items[max(end - limit, begin) : end]
        has_more = end - limit > begin
    else:
        found = items[begin : begin + limit]
        has_more = begin + limit < end
    return make(list(found), has_more, found[0].id if found else None, found[-1].id if found else None)


def _limit(given: str | None) -> int:
    if given is None:
        return _PAGE
    if not given.isdecimal() or len(given) > 4 or not 1 <= int(given) <= _LARGEST_PAGE:
        raise RequestError(f"limit must be a number from 1 to {_LARGEST_PAGE}, not {shown(given)}")
    return int(given)


def _place(ids: Sequence[str], name: str, id: str) -> int:
    if id not in ids:
        raise RequestError(f"{name}: there is no {shown(id)} in the list")
    return ids.index(id)
