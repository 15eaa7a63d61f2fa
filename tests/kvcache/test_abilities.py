"""Optional abilities of caches, and the errors where they are missing."""

from __future__ import annotations

import pytest

from puna.engine.prefix_cache import PrefixCache
from puna.errors import NotSupportedError
from puna.kvcache.cache import Cache, Compacting, Picturing, Saving
from puna.kvcache.causal import CausalCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.saved import Saved
from puna.kvcache.storage import KVShape
from puna.kvcache.whole_text import WholeTextCache
from puna.kvcache.wrapper import WrapperCache
from tests.kvcache.probe import OPS

ONE = KVShape(1, 1, 1)


def causal() -> CausalCache:
    return CausalCache(OPS, {0: ONE}, sequences=1, context=8)


def whole_text() -> WholeTextCache:
    return WholeTextCache(OPS, {1: ONE}, sequences=1)


@pytest.mark.parametrize("cache", [causal(), RecurrentCache(OPS, {0: {"s": (1,)}}, sequences=1)])
def test_caches_that_remember_can_do_everything(cache: Cache) -> None:
    assert isinstance(cache, Saving)
    assert isinstance(cache, Picturing)
    assert isinstance(cache, Compacting)


def test_a_cache_that_remembers_nothing_need_not_save_picture_or_compact() -> None:
    for ability in (Saving, Picturing, Compacting):
        assert not isinstance(whole_text(), ability)


def test_a_wrapper_has_the_abilities_of_its_caches() -> None:
    cache = WrapperCache(causal(), whole_text())
    assert [held.kind for held in cache.contents()] == ["causal"]
    assert not cache.compact()
    with pytest.raises(NotSupportedError, match="the contents of a wholetext cache cannot be saved"):
        cache.save(0)


def test_a_cache_without_saving_is_refused() -> None:
    remembered = PrefixCache(whole_text(), 1)
    with pytest.raises(NotSupportedError, match="cannot be saved"):
        remembered.restore(Saved({}, {}), [1, 2, 3])
    assert remembered.find([1, 2, 3], 3).count == 0
