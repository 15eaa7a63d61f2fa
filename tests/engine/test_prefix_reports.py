"""Reports of the prompts that can be resumed, against what the prefix cache finds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from puna.engine.prefix_cache import PrefixEntry
from puna.engine.prefix_reports import PrefixReports
from puna.kvcache.causal import CausalCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import SlidingCache
from puna.model.load import LoadedModel
from puna.prefix_blocks import BLOCK, block_digests
from puna.protocol import ReportPrefixes
from tests.engine.prefix_world import SHAPES, World
from tests.engine.runs import Run
from tests.kvcache.probe import OPS


class Reader:
    """A client of reports, with what it knows."""

    def __init__(self, reports: PrefixReports) -> None:
        self.reports = reports
        self.version = 0
        self.known: set[int] = set()
        self.wholes = 0

    def read(self) -> tuple[int, int]:
        """Ask for changes; return the numbers of added and removed blocks."""
        report = self.reports.report(ReportPrefixes(id=7, since=self.version))
        assert report.id == 7
        added, removed = (np.frombuffer(data, "<u8").tolist() for data in (report.added, report.removed))
        assert not {*added} & {*removed}
        self.known = ({*()} if report.whole else self.known - {*removed}) | {*added}
        self.version = report.version
        self.wholes += report.whole
        return len(added), len(removed)


def causal(rows: int = 6) -> World:
    return World(cache=CausalCache(OPS, SHAPES, sequences=rows, context=2000, capacity=3000), rows=rows)


def test_only_changes_are_reported_and_everything_at_first() -> None:
    world = causal()
    reader = Reader(PrefixReports(world.prefix_cache))
    assert reader.read() == (0, 0)
    keys = [*range(200)]
    entry, _ = world.begin(keys, come=70)  # runs, with one block evaluated
    assert reader.read() == (1, 0)
    assert reader.known == {*block_digests(keys[:70])}
    world.evaluate(entry, 130)
    world.prefix_cache.release(entry, keys)
    assert reader.read() == (2, 0)
    assert reader.known == {*block_digests(keys)}
    assert reader.read() == (0, 0)
    other = [*keys[:130], *range(1000, 1070)]
    world.finished(other)  # shares two blocks
    assert reader.read() == (1, 0)
    world.prefix_cache.evict()
    assert reader.read()[1] == 1
    assert reader.known == {*block_digests(other)}
    assert reader.wholes == 1


def test_random_requests_are_reported_exactly() -> None:
    """Two clients, one of which seldom asks, know the blocks of all entries at any time."""
    for seed in range(8):
        dice, world = random.Random(seed), causal()
        reports = PrefixReports(world.prefix_cache)
        often, seldom = Reader(reports), Reader(reports)
        running: list[tuple[PrefixEntry, list[int]]] = []
        held: dict[PrefixEntry, list[int]] = {}
        texts: list[list[int]] = [[]]
        for _ in range(120):
            match dice.randrange(4):
                case 0 | 1 if len(running) < 3:
                    text = dice.choice(texts)
                    keys = text[: dice.randint(0, len(text))]
                    keys += [dice.randrange(3) for _ in range(dice.randint(1, 150))]
                    entry, _ = world.begin(keys, come=None if dice.random() < 0.5 else 0)
                    running.append((entry, keys))
                    texts.append(keys)
                    held[entry] = keys
                case 2 if running:
                    entry, keys = running.pop(dice.randrange(len(running)))
                    world.prefix_cache.release(entry, keys[: entry.evaluated])
                case 3:
                    world.prefix_cache.evict()
            expected = {
                digest
                for entry in world.prefix_cache.by_use
                for digest in block_digests(held[entry][: entry.evaluated])
            }
            often.read()
            assert often.known == expected
            if dice.random() < 0.05:
                seldom.read()
                assert seldom.known == expected
        assert often.wholes == 1


def test_caches_that_forget_report_where_they_can_be_resumed() -> None:
    keys = [*range(300)]
    windowed = World(cache=SlidingCache(OPS, SHAPES, window=8, sequences=4, context=400, capacity=800))
    windowed.finished(keys)
    windowed.finished([9, 9])  # its pass drops what the first one's pass needed
    reader = Reader(PrefixReports(windowed.prefix_cache))
    reader.read()
    assert reader.known == {block_digests(keys)[-1]}
    states = World(cache=RecurrentCache(OPS, {0: {"state": (2,)}}, sequences=4))
    entry, _ = states.begin(keys, come=130)
    states.prefix_cache.checkpoint(entry, [*keys[:130]])
    states.evaluate(entry, 170)
    reader = Reader(PrefixReports(states.prefix_cache))
    reader.read()
    assert reader.known == {block_digests(keys)[1], block_digests(keys)[3]}


def test_the_most_recently_used_blocks_are_reported_and_forgotten_changes_are_whole() -> None:
    world = causal()
    reports = PrefixReports(world.prefix_cache, most=4)
    late, reader = Reader(reports), Reader(reports)
    texts = [[100 * number + 1, *range(BLOCK * 2)] for number in range(5)]
    for number, text in enumerate(texts):
        world.finished(text)
        reader.read()
        if number == 1:
            late.read()
        recent = texts[max(number - 1, 0) : number + 1]
        assert reader.known == {digest for each in recent for digest in block_digests(each)}
    assert reader.wholes == 1
    late.read()
    assert late.known == reader.known
    assert late.wholes == 2
    ahead = Reader(reports)
    ahead.version = 10**6  # of another process
    ahead.read()
    assert ahead.known == reader.known


def test_a_runs_blocks_are_computed_once(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(keys: list[int], known: list[int]) -> list[int]:
        found = block_digests(keys, known)
        hashed.append(len(found) - len(known))
        return found

    monkeypatch.setattr("puna.engine.prefix_cache.block_digests", counted)
    run = Run(tiny, context=128)
    reader = Reader(run.engine.prefix_reports)
    run.submit(0, [5] * 70, num_predict=58)
    for _ in range(70):
        run.engine.step()
        reader.read()
    keys = [5] * 70 + run.tokens(0)
    assert reader.known == {*block_digests(keys[:127])}
    run.submit(1, keys[:127], num_predict=1)
    run.finish()
    reader.read()
    assert sum(hashed) == 1
