"""Recurrent states and their checkpoints.

A pass never writes the state it reads, so sharing one costs no copy.
"""

from __future__ import annotations

import numpy as np
import pytest

from puna.batch import Batch
from puna.errors import NotSupportedError
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.recurrent import Checkpoints, RecurrentCache
from puna.kvcache.wrapper import WrapperCache
from tests.kvcache.probe import NUMBERS, OPS, add_shift, stretches

SHAPES = {2: {"conv": (2, 3), "sum": (1,)}, 5: {"sum": (1,)}}


def reference(inputs: list[float]) -> float:
    """Return the state after `inputs`; recent ones weigh more, so that order and number matter."""
    state = 0.0
    for number in inputs:
        state = state / 2 + number
    return state


def feed(cache, inputs: dict[int, list[float]], drafts: dict[int, int] | None = None) -> dict[int, float]:
    """Run a pass over inputs of several sequences; return the states of layer 5 afterwards.

    The last inputs of a sequence may be drafts.
    """
    sequences = [s for s, numbers in inputs.items() for _ in numbers]
    positions = [cache.length(s) + i for s, numbers in inputs.items() for i in range(len(numbers))]
    batch = Batch.of([0] * len(positions), positions, sequences, [])
    batch.drafts = drafts or {}
    cache.start_forward(batch)
    return evaluate(cache, [number for numbers in inputs.values() for number in numbers], list(inputs))


def evaluate(cache, numbers: list[float], sequences: list[int]) -> dict[int, float]:
    for index in (2, 5):
        layer = cache.state(index)
        states, last = layer.states["sum"], {}
        for begin, end, source, target in stretches(layer.slots):
            state = states.read(np.array([source]))
            for number in numbers[begin:end]:
                state = state / 2 + number
            states.write(np.array([target]), state)
            last[int(OPS.numpy(layer.slots.starts)[begin])] = state.item()
    return dict(zip(sequences, last.values(), strict=True))


def made(sequences: int = 2, **options) -> RecurrentCache:
    return RecurrentCache(OPS, SHAPES, sequences=sequences, **options)


def test_a_ring_drops_the_oldest() -> None:
    kept = Checkpoints(2)
    assert kept.record(10, 1) + kept.record(20, 2) == []
    assert kept.best(15) == 10
    assert kept.record(30, 3) == [1]
    assert kept.best(15) is None
    assert kept.best(40) == 30


def test_the_best_checkpoint_is_the_last_before_the_target() -> None:
    kept = Checkpoints()
    for position in (5, 9, 15):
        kept.record(position, position)
    assert kept.best(12) == 9
    assert kept.best(9) == 5


def test_pruning_forgets_later_states() -> None:
    kept = Checkpoints()
    for position in (10, 20, 30):
        kept.record(position, position)
    assert kept.prune(20) == [30]
    assert (kept.last, kept.best(25), kept.best(35)) == (20, 20, 20)
    assert kept.prune(5) == [10, 20]
    assert (kept.positions, kept.last, kept.best(100)) == ([], -1, None)


def test_the_slot_of_the_oldest_checkpoint_is_freed() -> None:
    kept = Checkpoints(3)
    assert [kept.record(position, slot) for slot, position in enumerate((10, 20, 30, 40))] == [
        [],
        [],
        [],
        [0],
    ]


def test_a_limit_of_zero_keeps_no_checkpoints() -> None:
    kept = Checkpoints(0)
    assert kept.record(10, 7) == [7]
    assert kept.best(100) is None
    cache = made(checkpoints=0)
    for _ in range(40):
        feed(cache, {0: [1.0]})
    assert cache.resume_point(0, 39) == 0
    cache.check()


def test_states_have_their_declared_shape() -> None:
    with pytest.raises(ValueError, match="a state 'x' of shape"):
        RecurrentCache(OPS, {0: {"x": (3, 0)}}, sequences=1)
    cache = made()
    feed(cache, {0: [1.0]})
    states = cache.state(2).states
    assert {name: state.shape[1:] for name, state in states.items()} == {"conv": (2, 3), "sum": (1,)}
    with pytest.raises(KeyError, match="layer 2 is recurrent"):
        cache.layer(2)


def test_checkpoints_of_a_long_prompt_are_reused() -> None:
    cache = made()
    prompt = [float(i % 7) for i in range(3000)]
    for begin in range(0, 3000, 512):
        feed(cache, {0: prompt[begin : begin + 512]})
    assert cache.positions_kept(0) == [511, 2559]
    assert cache.resume_point(0, 2000) == 512
    assert cache.resume_point(0, 2560) == 2560
    assert cache.resume_point(0, 511) == 0
    cache.remove(0, 2560)
    assert feed(cache, {0: [3.0]})[0] == pytest.approx(reference([*prompt[:2560], 3.0]))
    cache.check()


def test_states_at_and_before_the_end_of_a_prompt_are_kept() -> None:
    cache = made()
    feed(cache, {0: [1.0] * 40})
    for _ in range(10):
        feed(cache, {0: [2.0]})
    assert cache.positions_kept(0) == [38, 39]
    assert [cache.resume_point(0, position) for position in (45, 40, 39, 38)] == [40, 40, 39, 0]
    cache.remove(0, 39)
    assert feed(cache, {0: [3.0]})[0] == pytest.approx(reference([1.0] * 39 + [3.0]))
    cache.check()


def test_a_prompt_just_evaluated_can_be_resumed_before_its_last_input() -> None:
    cache = made()
    for begin in range(0, 30, 10):
        feed(cache, {0: [1.0] * begin + [2.0] * 10})
    assert [cache.resume_point(0, position) for position in (59, 58)] == [59, 30]
    cache.copy_prefix(0, 1, 59)
    assert feed(cache, {1: [9.0]})[1] == pytest.approx(
        reference([*[2.0] * 10, *[1.0] * 10, *[2.0] * 10, *[1.0] * 20, *[2.0] * 9, 9.0])
    )
    cache.remove(0, 59)
    cache.check()
    feed(cache, {0: [5.0] * 4})
    cache.undo_forward()
    assert cache.resume_point(0, 58) == 30
    cache.check()


def test_the_first_checkpoint_is_at_position_16() -> None:
    cache = made()
    feed(cache, {0: [1.0] * 10})
    for _ in range(20):
        feed(cache, {0: [1.0]})
    assert cache.positions_kept(0) == [16]


def test_sequences_may_have_different_numbers_of_rows() -> None:
    cache = made()
    states = feed(cache, {0: [1.0, 2.0, 3.0], 1: [4.0]})
    assert states == {0: reference([1, 2, 3]), 1: 4.0}
    assert feed(cache, {1: [5.0, 6.0]}) == {1: reference([4, 5, 6])}


def test_slots_of_rows_are_in_buffers_with_fixed_addresses() -> None:
    cache = made(sequences=3)
    feed(cache, {0: [1.0, 2.0, 2.5], 1: [3.0]})
    slots, generation = cache.state(5).slots, cache.generation
    addresses = [part.ctypes.data for part in (slots.starts, slots.sources, slots.targets)]
    held = slots.targets.tolist()
    assert slots.starts.tolist() == [0, 0, 0, 3]
    assert slots.sources.tolist() == [0, 0, 0, 0]  # where nothing has been written
    assert held[0] == -1
    assert len(set(held)) == 4
    feed(cache, {1: [4.0], 2: [5.0], 0: [6.0]})
    slots = cache.state(2).slots
    assert [part.ctypes.data for part in (slots.starts, slots.sources, slots.targets)] == addresses
    assert slots.starts.tolist() == [0, 1, 2]
    assert slots.sources.tolist() == [held[3], 0, held[2]]
    assert len(set(slots.targets.tolist()) - {-1, *held}) == 3
    assert cache.generation == generation
    feed(cache, {0: [1.0] * 200})
    assert cache.generation is not None
    assert cache.generation > generation
    assert len(cache.state(2).slots.starts) == 200


@pytest.mark.parametrize("right", range(5))
def test_any_number_of_drafts_can_be_removed(right: int) -> None:
    cache = made()
    inputs = [1.0, 2.0, 3.0]
    feed(cache, {0: inputs, 1: [9.0]})
    drafts = [4.0, 5.0, 6.0, 7.0, 8.0]
    feed(cache, {0: drafts, 1: [9.5]}, drafts={0: 4})
    assert [cache.resume_point(0, position) for position in range(2, 9)] == [0, 0, 4, 5, 6, 7, 8]
    cache.check()
    cache.remove(0, 4 + right)
    cache.check()
    assert feed(cache, {0: [0.5], 1: [9.75]}) == {
        0: reference([*inputs, *drafts[: 1 + right], 0.5]),
        1: reference([9.0, 9.5, 9.75]),
    }
    assert cache.resume_point(0, 3 + right) == 0
    cache.check()


def test_a_failed_pass_leaves_no_drafts_behind() -> None:
    cache = made()
    feed(cache, {0: [1.0]})
    feed(cache, {0: [2.0, 3.0]}, drafts={0: 1})
    feed(cache, {0: [4.0, 5.0, 6.0]}, drafts={0: 2})
    cache.undo_forward()
    cache.check()
    assert feed(cache, {0: [7.0]}) == {0: reference([1, 2, 3, 7])}


@pytest.mark.parametrize(("rows", "drafts"), [(3, 1), (2, 2), (6, 5)])
def test_drafts_follow_exactly_one_other_input(rows: int, drafts: int) -> None:
    with pytest.raises(
        ValueError, match=f"sequence 0 has {rows} rows, {drafts} drafts: 1 other and 4 drafts at most"
    ):
        feed(made(), {0: [1.0] * rows}, drafts={0: drafts})


def test_sequences_that_share_a_state_diverge() -> None:
    cache = made()
    feed(cache, {0: [1.0, 2.0]})
    cache.copy_prefix(0, 1, 2)
    assert feed(cache, {0: [3.0], 1: [4.0]}) == {0: reference([1, 2, 3]), 1: reference([1, 2, 4])}
    cache.check()


def test_a_partial_copy_begins_at_a_checkpoint() -> None:
    cache = made()
    feed(cache, {0: [1.0] * 20})
    feed(cache, {0: [2.0]})
    feed(cache, {1: [9.0]})
    cache.copy_prefix(0, 1, 20)
    assert (cache.length(1), cache.positions_kept(1)) == (20, [18, 19])
    assert feed(cache, {1: [5.0]})[1] == pytest.approx(reference([1.0] * 20 + [5.0]))
    cache.copy_prefix(0, 1, 15)
    assert cache.length(1) == 0
    assert feed(cache, {1: [5.0]})[1] == 5.0
    cache.check()


def test_a_new_sequence_begins_with_zeros() -> None:
    cache = made(sequences=1)
    for _ in range(3):
        feed(cache, {0: [5.0] * 30})
        feed(cache, {0: [5.0]})
        cache.remove(0, 0)
        assert cache.positions_kept(0) == []
        assert feed(cache, {0: [1.0]}) == {0: 1.0}
        cache.remove(0, 0)
    cache.check()


def test_an_impossible_removal_is_refused_and_changes_nothing() -> None:
    cache = made()
    feed(cache, {0: [1.0, 2.0, 3.0]})
    with pytest.raises(
        NotSupportedError, match="kept no state of sequence 0 at position 1, the last before it is at 0"
    ):
        cache.remove(0, 1)
    for begin in (0, 1):
        with pytest.raises(NotSupportedError, match="evaluate it again"):
            cache.remove(0, begin, 2)
    assert feed(cache, {0: [4.0]}) == {0: reference([1, 2, 3, 4])}
    cache.remove(0, 0)
    assert feed(cache, {0: [4.0]}) == {0: 4.0}


def test_a_sequence_continues_where_it_ended() -> None:
    cache = made()
    feed(cache, {0: [1.0, 2.0, 3.0]})
    assert cache.can_resume(0, 3)
    assert cache.resume_point(0, 100) == 3
    cache.remove(0, 3)
    cache.remove(0, 7, 9)
    assert feed(cache, {0: [4.0]}) == {0: reference([1, 2, 3, 4])}


def test_a_failed_pass_is_undone_and_can_be_repeated() -> None:
    cache = made()
    feed(cache, {0: [1.0, 2.0]})
    feed(cache, {0: [7.0] * 5, 1: [8.0]})
    cache.undo_forward()
    assert (cache.length(0), cache.length(1)) == (2, 0)
    assert feed(cache, {0: [3.0]}) == {0: reference([1, 2, 3])}
    assert evaluate(cache, [3.0], [0]) == {0: reference([1, 2, 3])}
    cache.check()


def test_positions_must_be_consecutive() -> None:
    cache = made()
    with pytest.raises(ValueError, match="sequence 0 continues at position 0 without gaps, row 0"):
        cache.start_forward(Batch.of([0], [1], [0], []))
    with pytest.raises(ValueError, match="sequence 0 continues at position 1 without gaps, row 1"):
        cache.start_forward(Batch.of([0, 0], [0, 2], [0, 0], []))


def test_slots_do_not_run_out_and_memory_is_returned() -> None:
    cache = made(checkpoints=2)
    for step in range(300):
        feed(cache, {0: [1.0] * 20, 1: [2.0]})
        if step % 7 == 0:
            cache.copy_prefix(step % 2, 1 - step % 2, 10**6)
        if step % 5 == 0:
            cache.remove(step % 2, 0)
        cache.check()
    cache.remove(0, 0)
    cache.remove(1, 0)
    feed(cache, {0: [1.0]})
    before = cache.provided_bytes
    assert not cache.compact()
    assert cache.provided_bytes < before
    assert feed(cache, {0: [2.0]}) == {0: reference([1, 2])}
    cache.close()
    assert cache.allocated_bytes == 0


def test_a_hybrid_resumes_where_all_its_layers_can() -> None:
    cache = WrapperCache(
        CausalCache(OPS, {0: KVShape(1, 1, 1)}, sequences=2, context=64, types=NUMBERS, shift=add_shift),
        made(),
    )
    feed(cache, {0: [1.0] * 30})
    feed(cache, {0: [2.0]})
    feed(cache, {0: [3.0]})
    assert [cache.resume_point(0, p) for p in (28, 29, 30, 31, 32)] == [0, 29, 30, 30, 32]
    with pytest.raises(NotSupportedError):
        cache.remove(0, 3, 5)
    assert [inner.length(0) for inner in cache.caches] == [32, 32]
    cache.copy_prefix(0, 1, 31)
    cache.remove(1, cache.resume_point(1, 31))
    assert [inner.length(1) for inner in cache.caches] == [30, 30]
    assert feed(cache, {1: [9.0]})[1] == pytest.approx(reference([1.0] * 30 + [9.0]))
