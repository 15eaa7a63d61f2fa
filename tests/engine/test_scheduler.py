"""Many requests: shared prefixes, waiting, and a full cache."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from puna.model.load import LoadedModel
from tests.engine.runs import Run

SYSTEM = [(7 * i) % 200 for i in range(50)]


def alone(tiny: LoadedModel, prompt: list[int], **settings: Any) -> list[int]:
    return Run(tiny, context=128).one(prompt, **settings)[0]


# --- sharing ---------------------------------------------------------------------------------------


def test_a_shared_prefix_is_evaluated_once(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=8, context=128)
    prompts = [[*SYSTEM, 201 + number, 3, 4] for number in range(6)]
    for number, prompt in enumerate(prompts):
        run.submit(number, prompt, num_predict=4)
    run.finish()
    assert run.rows[:2] == [50, 6 * 3]
    assert sum(run.rows) == 50 + 6 * 3 + 6 * 3  # the last generated token is not evaluated
    assert [run.done(number).cached for number in range(6)] == [0, 50, 50, 50, 50, 50]
    assert [run.tokens(number) for number in range(6)] == [alone(tiny, p, num_predict=4) for p in prompts]
    assert run.leaked() == 0


def test_more_requests_than_slots_share_a_prefix_too(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=2, context=128)
    for number in range(6):
        run.submit(number, [*SYSTEM, 201 + number, 3], num_predict=3)
    run.finish()
    assert [run.done(number).cached for number in range(6)] == [0, 50, 50, 50, 50, 50]
    assert max(run.rows[1:]) <= 4


def test_a_finished_request_can_be_shared_by_several_at_once(tiny: LoadedModel) -> None:
    run = Run(tiny, context=128)
    run.one([*SYSTEM, 201])
    for number in range(1, 4):
        run.submit(number, [*SYSTEM, 210 + number, 3], num_predict=2)
    run.finish()
    assert [run.done(number).cached for number in range(1, 4)] == [50] * 3


def test_no_request_waits_for_a_short_common_prefix(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=8, context=128)
    for number in range(4):
        run.submit(number, [*SYSTEM[:20], number])
    run.engine.step()
    assert run.rows == [4 * 21]


def test_waiter_resumes_where_the_cancelled_request_stopped(tiny: LoadedModel) -> None:
    run = Run(tiny, context=128, batch_size=16)
    run.submit(0, [*SYSTEM, 201])
    run.submit(1, [*SYSTEM, 202])
    run.engine.step()
    run.engine.cancel(0)
    run.finish()
    assert run.events[0] == []
    assert run.done(1).cached == 16
    assert run.tokens(1) == alone(tiny, [*SYSTEM, 202])
    assert run.leaked() == 0


def test_waiting_for_a_prefix_does_not_block_others(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=3, context=128, batch_size=16)
    run.submit(0, [*SYSTEM, 201])
    run.submit(1, [*SYSTEM, 202])
    run.submit(2, [1, 2, 3], num_predict=1)
    run.engine.step()
    run.engine.step()
    assert run.ended == [2]


def test_samples_share_the_prompt_and_differ_by_seed(tiny: LoadedModel) -> None:
    run = Run(tiny, context=128)
    sampling = {"temperature": 1.3, "num_predict": 6}
    run.submit(0, SYSTEM, samples=4, seed=5, **sampling)
    run.finish()
    assert run.rows == [49, 4, 4, 4, 4, 4, 4]
    samples = [run.tokens(0, sample) for sample in range(4)]
    assert samples == [alone(tiny, SYSTEM, seed=5 + i, **sampling) for i in range(4)]
    assert len(set(map(tuple, samples))) > 1
    assert [run.done(0, sample).cached for sample in range(4)] == [0, 49, 49, 49]


def test_cancelling_ends_all_samples(tiny: LoadedModel) -> None:
    run = Run(tiny, context=128)
    run.submit(0, SYSTEM, samples=6)
    run.engine.step()
    run.engine.step()
    run.engine.cancel(0)
    run.finish()
    assert run.ended == []
    assert run.leaked() == 0


def test_a_request_can_opt_out_of_the_prefix_cache(tiny: LoadedModel) -> None:
    run = Run(tiny, context=128)
    expected, _ = run.one(SYSTEM)
    run.submit(1, SYSTEM, cache_prompt=False)
    run.finish()
    assert (run.tokens(1), run.done(1).cached) == (expected, 0)


def test_a_request_can_leave_no_prefix_behind(tiny: LoadedModel) -> None:
    run = Run(tiny, context=128)
    run.one(SYSTEM, cache_prompt=False)
    cells = run.engine.cache.cells
    assert cells.free == cells.capacity


def test_tokens_cut_by_a_stop_string_are_cached_correctly(tiny: LoadedModel) -> None:
    text = tiny.tokenizer.decode(alone(tiny, SYSTEM))
    run = Run(tiny, context=128)
    tokens, done = run.one(SYSTEM, stop=[text[4:6]])
    assert done.reason == "stop"
    again = [*SYSTEM, *tokens, 9]
    run.submit(1, again)
    run.finish()
    assert run.tokens(1) == alone(tiny, again)


def test_shifted_inputs_are_not_shared(tiny: LoadedModel) -> None:
    run = Run(tiny, context=48)
    prompt = SYSTEM[:20]
    tokens, done = run.one(prompt, num_predict=60, num_keep=4)
    assert done.shifted > 0
    keep = 4 + tiny.tokenizer.add_bos
    left = [*prompt[:keep], *[*prompt[keep:], *tokens][done.shifted :]]
    run.submit(1, left[:40])
    run.finish()
    assert run.done(1).cached == keep
    assert run.tokens(1) == Run(tiny, context=48).one(left[:40])[0]


def test_a_shift_leaves_shared_cells_unchanged(tiny: LoadedModel) -> None:
    run = Run(tiny, context=48, capacity=60)
    for number, predict in enumerate((70, 12, 70)):
        run.submit(number, [*SYSTEM[:34], number], num_predict=predict)
    run.finish()
    assert run.done(0).shifted > 0
    assert run.tokens(1) == alone(tiny, [*SYSTEM[:34], 1])
    assert run.leaked() == 0


# --- room ------------------------------------------------------------------------------------------


def test_requests_take_turns_when_cells_are_too_few(tiny: LoadedModel) -> None:
    prompts = [[number, *range(100, 111)] for number in range(6)]
    run = Run(tiny, parallel=4, context=64, capacity=80)
    for number, prompt in enumerate(prompts):
        run.submit(number, prompt, num_predict=40)
    run.finish()
    assert [run.tokens(number) for number in range(6)] == [
        alone(tiny, prompt, num_predict=40) for prompt in prompts
    ]
    assert all(run.done(number).cached == 0 for number in range(6))
    assert run.leaked() == 0


def test_the_oldest_is_never_made_to_wait(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=4, context=64, capacity=64)
    for number in range(4):
        run.submit(number, [number, 1, 2], num_predict=50)
    run.finish()
    assert run.ended[0] == 0
    # It got a token with each step.
    assert len(run.rows) >= 50
    assert run.leaked() == 0


def test_running_requests_evict_cached_prefixes(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, context=64, capacity=64)
    run.one(SYSTEM[:30])
    run.submit(1, SYSTEM[20:50], num_predict=30)
    run.finish()
    assert run.tokens(1) == alone(tiny, SYSTEM[20:50], num_predict=30)


def test_a_request_waits_for_room_for_its_prompt(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=4, context=64, capacity=64)
    run.submit(0, SYSTEM[:30], num_predict=20)
    run.submit(1, SYSTEM[10:50], num_predict=5)
    run.engine.step()
    assert run.rows == [30]
    run.finish()
    assert run.ended == [0, 1]


def test_a_full_context_is_shifted_even_when_cells_are_few(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=4, context=32, capacity=40)
    for number in range(5):
        run.submit(number, [number, *SYSTEM[:8]], num_predict=60)
    run.finish()
    assert [run.done(number).eval_count for number in range(5)] == [60] * 5
    assert run.leaked() == 0


# --- priorities ------------------------------------------------------------------------------------


def test_interactive_requests_take_the_slots_of_batch_ones(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, context=128)
    run.submit(0, SYSTEM, priority="batch", num_predict=20)
    run.submit(1, SYSTEM[:10], priority="batch")
    for _ in range(3):
        run.engine.step()
    run.submit(2, [1, 2, 3], num_predict=8)
    run.finish()
    assert run.ended == [2, 0, 1]
    assert run.tokens(0) == alone(tiny, SYSTEM, num_predict=20)
    # The first continued with what it had evaluated.
    assert sum(run.rows) < 2 * len(SYSTEM)
    assert run.leaked() == 0


def test_interactive_requests_take_the_cells_of_batch_ones(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=4, context=64, capacity=64)
    run.submit(0, SYSTEM[:40], priority="batch", num_predict=20)
    for _ in range(3):
        run.engine.step()
    run.submit(1, SYSTEM[20:50], num_predict=8)
    run.finish()
    assert run.ended == [1, 0]
    assert run.tokens(0) == alone(tiny, SYSTEM[:40], num_predict=20)


def test_an_interactive_request_does_not_wait_for_a_batch_one(tiny: LoadedModel) -> None:
    run = Run(tiny, context=128, batch_size=16)
    run.submit(0, [*SYSTEM, 201], priority="batch")
    run.engine.step()
    run.submit(1, [*SYSTEM, 202], num_predict=1)
    run.finish()
    assert run.ended == [1, 0]


# --- clients ---------------------------------------------------------------------------------------


def test_a_client_with_many_requests_does_not_delay_one_with_a_single_request(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, context=128)
    for number in range(6):
        run.submit(number, [number, 1, 2], client="many", num_predict=2)
    run.engine.step()  # the first of these is running now
    run.submit(10, [10, 1, 2], client="one", num_predict=2)
    run.submit(20, [20, 1, 2], client="two", num_predict=2)
    run.submit(21, [21, 1, 2], client="two", num_predict=2)
    run.finish()
    assert run.ended == [0, 10, 20, 1, 21, 2, 3, 4, 5]


def test_each_sample_and_embedded_text_takes_a_turn(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, context=128)
    run.submit(0, [1, 2, 3], client="many", samples=4, seed=1, num_predict=2)
    run.embed(1, *([number, 1] for number in range(6)), client="many")
    run.submit(2, [5, 6, 7], client="one", num_predict=2)
    run.finish()
    assert run.ended == [0, 2, 0, 0, 0]
    assert len(run.embedded(1)) == 6


def test_a_client_with_endless_requests_does_not_starve_others(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, context=128)
    for number in range(3):
        run.submit(number, [number, 1, 2], client="three", num_predict=1)
    for number in range(10, 20):
        run.submit(number, [number, 1, 2], client="ever", num_predict=1)
        while len(run.ended) <= number - 10:
            run.engine.step()
    run.finish()
    assert run.ended[:6] == [0, 10, 1, 11, 2, 12]


def test_cancelled_requests_do_not_count_as_a_clients_turns(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1, context=128)
    run.submit(0, [1, 2, 3], client="other", num_predict=2)
    run.engine.step()
    for number in range(1, 9):
        run.submit(number, [number, 1, 2], client="fickle")
        run.engine.cancel(number)
    run.engine.step()
    for number in range(10, 13):
        run.submit(number, [number, 1, 2], client="other", num_predict=2)
    run.submit(20, [20, 1, 2], client="fickle", num_predict=2)
    run.finish()
    assert run.ended == [0, 20, 10, 11, 12]


# --- all of it together ----------------------------------------------------------------------------

PROMPT = st.builds(
    lambda shared, own, length: [*SYSTEM[:shared], *[own, 7, own + 1][:length]],
    st.sampled_from([1, 10, 35, 40]), st.integers(0, 3), st.integers(1, 3),
)  # fmt: skip
ARRIVAL = st.tuples(
    PROMPT,
    st.sampled_from([1, 2, 9, 20]),  # tokens to generate
    st.integers(0, 4),  # steps before the next
    st.sampled_from([None, None, None, 0, 1, 6]),  # cancelled after this many more steps
    st.sampled_from(["interactive", "interactive", "batch"]),
    st.sampled_from([1, 1, 1, 3]),  # samples
    st.booleans(),  # may use the prefix cache
)
_expected: dict[tuple[str, tuple[int, ...], int], list[int]] = {}


@given(
    st.lists(ARRIVAL, min_size=1, max_size=12), st.integers(64, 150), st.integers(1, 5), st.integers(1, 40)
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_request_gets_the_same_answer_as_alone(
    model: LoadedModel, arrivals: list, capacity: int, parallel: int, batch_size: int
) -> None:
    run = Run(
        model,
        parallel=parallel,
        context=64,
        capacity=capacity,
        batch_size=batch_size,
        remembered=parallel % 3,
    )
    cancellations: dict[int, list[int]] = {}
    clock = 0
    for number, (prompt, predict, pause, cancelled, priority, samples, cached) in enumerate(arrivals):
        run.submit(
            number, prompt, num_predict=predict, priority=priority, samples=samples, cache_prompt=cached
        )
        if cancelled is not None:
            cancellations.setdefault(clock + cancelled, []).append(number)
        for _ in range(pause):
            for victim in cancellations.pop(clock, []):
                run.engine.cancel(victim)
            run.engine.step()
            clock += 1
    while cancellations:
        for victim in cancellations.pop(clock, []):
            run.engine.cancel(victim)
        run.engine.step()
        clock += 1
    run.finish()
    for number, (prompt, predict, _, cancelled, _, samples, _) in enumerate(arrivals):
        key = (model.path.name, tuple(prompt), predict)
        if key not in _expected:
            _expected[key] = Run(model).one(prompt, num_predict=predict)[0]
        for sample in range(samples):
            tokens = run.tokens(number, sample)
            if cancelled is None:
                assert tokens == _expected[key]
                assert run.done(number, sample).reason == "length"
            else:
                assert tokens == _expected[key][: len(tokens)]
    assert run.leaked() == 0
