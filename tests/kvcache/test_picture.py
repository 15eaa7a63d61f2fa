"""Pictures show what caches hold, and those in the documentation are real."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from puna.batch import Batch
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.contents import Contents, Held, name, picture
from puna.kvcache.encoder import EncoderCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import SlidingCache
from puna.kvcache.wrapper import WrapperCache
from tests.kvcache.probe import OPS, Probe

DOCS = Path(__file__).parents[2] / "docs"
ONE = KVShape(1, 1, 1)


def test_the_documentation_shows_real_caches() -> None:
    script = [sys.executable, str(DOCS / "kvcache_pictures.py")]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    documented = (DOCS / "kvcache.md").read_text()
    pictures = [line for line in printed.split("\n\n") if line.strip()]
    assert len(pictures) > 30
    missing = [text for text in pictures if text.rstrip("\n") not in documented]
    assert not missing, f"docs/kvcache.md lacks what docs/kvcache_pictures.py prints: {missing[0]}"


def contents(*sequences: Held) -> Contents:
    return Contents("causal", [0], 4096, 0, list(sequences))


def test_a_cell_shows_its_holder_and_position() -> None:
    held = contents(Held([0, 2], [7, 8]), Held([], []), Held([1], [10]))
    assert picture(held, 4, 80) == [" A  C  A  .", " 7 10  8"]
    assert (held.held, held.used) == (3, 3)


def test_a_shared_cell_shows_its_position_in_the_first_sequence() -> None:
    held = contents(Held([3, 1], [4, 5]), Held([3], [4]))
    assert picture(held, 4, 80) == [" .  A  .  *", "    5     4"]
    assert (held.held, held.used) == (2, 4)


def test_long_positions_widen_columns() -> None:
    assert picture(contents(Held([0], [12345])), 2, 80) == ["    A     .", "12345"]


def test_picture_of_no_cells_is_empty() -> None:
    assert picture(contents(Held([], [])), 0, 80) == []
    assert contents().used == 0


def test_wide_pictures_wrap() -> None:
    held = contents(Held([0, 1, 2, 4], [0, 1, 2, 3]))
    # Four columns after the number of the first cell.
    assert picture(held, 6, 15) == [
        "0   A  A  A  .",
        "    0  1  2",
        "4   A  .",
        "    3",
    ]
    assert picture(held, 2, 1) == ["0   A", "    0", "1   A", "    1"]


def test_rows_that_merely_continue_are_left_out() -> None:
    count = 1000
    held = contents(Held(list(range(count)), list(range(count))), Held([count, count + 40], [0, 1]))
    lines = picture(held, held.used, 90)  # 21 to a row
    assert lines[0].split() == ["0", *"A" * 21]
    assert lines[1].split() == [str(position) for position in range(21)]
    assert lines[2] == "..."
    assert lines[3].split() == ["987", *"A" * 13, "B", *"." * 7]
    assert [line.split()[0] for line in lines[5::2]] == ["1008", "1029"]
    assert lines[-2].endswith("B")


@pytest.mark.parametrize(("number", "letters"), [(0, "A"), (25, "Z"), (26, "AA"), (51, "AZ"), (702, "AAA")])
def test_sequences_have_names(number: int, letters: str) -> None:
    assert name(number) == letters


def test_contents_match_the_lists_of_cells() -> None:
    probe = Probe(kind=SlidingCache, sequences=2, window=2)
    probe.store([0] * 4, [0, 1, 2, 3], [0.0] * 4)
    probe.store([0, 1], [4, 0], [0.0] * 2)
    (held,) = probe.cache.contents()
    assert (held.kind, held.layers, held.capacity) == ("sliding", [0], 32)
    assert held.provided_bytes == probe.cache.provided_bytes
    assert held.sequences == [Held([2, 3, 0], [2, 3, 4]), Held([1], [0])]


def test_contents_of_an_encoder_are_images_at_their_positions() -> None:
    cache = EncoderCache(OPS, {3: ONE}, sequences=2, longest=8, entries=int)
    batch = Batch.of([0] * 5, [0, 1, 2, 0, 1], [0, 0, 0, 1, 1], [])
    batch.payloads = [(1, 2), (4, 3)]
    cache.start_forward(batch)
    (held,) = cache.contents()
    assert (held.kind, held.layers) == ("encoder", [3])
    assert held.sequences == [Held([0, 1], [1, 1]), Held([2, 3, 4], [1, 1, 1])]


def test_contents_of_a_recurrent_cache_are_states_after_their_positions() -> None:
    cache = RecurrentCache(OPS, {5: {"state": (1,)}}, sequences=2, checkpoints=2)
    cache.start_forward(Batch.of([0] * 20, list(range(20)), [0] * 20, []))
    assert cache.contents()[0].sequences == [Held([1, 0], [18, 19]), Held([], [])]
    for position in (20, 21, 22):
        cache.start_forward(Batch.of([0], [position], [0], []))
    (held,) = cache.contents()
    assert (held.kind, held.layers) == ("recurrent", [5])
    assert held.sequences[0].positions == [
        18,  # the prompt without its last input
        19,  # the prompt's end
        21,  # restored after a failed pass
        22,  # now
    ]
    cache.copy_prefix(0, 1, 20)
    held = cache.contents()[0]
    assert held.sequences[1] == Held(held.sequences[0].cells[:2], [18, 19])
    assert (held.held, held.capacity) == (4, 2 * (2 + 7))


def test_wrapper_lists_the_contents_of_its_caches() -> None:
    how = {"sequences": 1, "context": 8}
    cache = WrapperCache(
        SlidingCache(OPS, {0: ONE, 2: ONE}, window=2, **how), CausalCache(OPS, {1: ONE}, **how)
    )
    assert [(held.kind, held.layers) for held in cache.contents()] == [("sliding", [0, 2]), ("causal", [1])]
