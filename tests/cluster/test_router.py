"""The router against a plain model of what its replicas remember, and the choices it must make."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.cluster import router as router_module
from puna.cluster.router import Route, Router
from puna.prefix_blocks import BLOCK

#: Prompts of up to six blocks from a tree that branches twice: a digest is the path to its block.
PROMPTS = [
    tuple(int("1" + "".join(map(str, path[:end])), 2) for end in range(1, len(path) + 1))
    for path in itertools.product((0, 1), repeat=6)
]
NAMES = ("a", "b", "c", "d", "e")


def cluster(names: Sequence[str] = NAMES, *, bound: float = 2.0, parallel: int = 8) -> Router:
    router = Router(bound)
    for name in names:
        add(router, name, parallel=parallel)
    return router


def add(router: Router, name: str, *, parallel: int = 8, speed: float = 600, kernels: str = "avx512") -> None:
    router.add(name, parallel=parallel, prompt_tokens_s=speed, decode_tokens_s=40, kernels=kernels)


def sent(router: Router, digests: Sequence[int], now_s: float = 0.0) -> Route:
    """Route a prompt of these blocks and ten more tokens, and send it."""
    route = router.route(digests, len(digests) * BLOCK + 10, now_s=now_s)
    assert route is not None
    router.began(route, now_s)
    return route


def answered(router: Router, route: Route, now_s: float = 1.0) -> None:
    router.first_token(route, now_s)
    router.finished(route, now_s + 1, evaluated=route.own_tokens, generated=40)


def overlap(router: Router, name: str, digests: Sequence[int], names: Sequence[str] = NAMES) -> int:
    """Return how many blocks of a prompt the router believes a replica to have."""
    exclude = set(names) - {name}
    route = router.route(digests, len(digests) * BLOCK + 10, now_s=0.0, exclude=exclude)
    assert route is not None
    assert route.replica == name
    assert route.overlap_tokens % BLOCK == 0
    return route.overlap_tokens // BLOCK


# --- what replicas remember --------------------------------------------------------------------------


@dataclass
class Plain:
    """A replica as the router should know it."""

    reported: set[int] = field(default_factory=set)
    reports: int = 0
    open: bool = True
    running: list[Route] = field(default_factory=list)
    ended: list[tuple[int, Route]] = field(default_factory=list)

    def report(self, added: set[int], removed: set[int], whole: bool) -> None:
        self.reported = set(added) if whole else (self.reported - removed) | added
        self.reports += 1
        self.ended = [(at, route) for at, route in self.ended if self.reports < at + 2]

    def overlap(self, digests: Sequence[int]) -> int:
        promised = {digest for route in self.running for digest in route.digests}
        promised |= {digest for _, route in self.ended for digest in route.digests}
        known = self.reported | promised
        return max((depth for depth, digest in enumerate(digests, 1) if digest in known), default=0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(NAMES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("drain"), st.sampled_from(NAMES)),
        st.tuples(
            st.just("report"),
            st.sampled_from(NAMES),
            st.sampled_from(PROMPTS),
            st.integers(0, 6),
            st.booleans(),
        ),
        st.tuples(st.just("send"), st.sampled_from(PROMPTS), st.sets(st.sampled_from(NAMES), max_size=3)),
        st.tuples(st.just("end"), st.integers(0, 50), st.booleans()),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=200)
def test_router_knows_what_a_plain_model_knows_and_sends_nothing_where_it_must_not(steps: list) -> None:
    router, plain = cluster(NAMES[:2]), {name: Plain() for name in NAMES[:2]}
    for now_s, (kind, *values) in enumerate(steps):
        match kind, *values:
            case "add", name if name not in plain:
                add(router, name)
                plain[name] = Plain()
            case "remove", name if name in plain:
                router.remove(name)
                del plain[name]
            case "drain", name if name in plain:
                router.drain(name)
                plain[name].open = False
            case "report", name, prompt, count, whole if name in plain:
                router.reported(name, prompt[:count], prompt[count:], whole)
                plain[name].report(set(prompt[:count]), set(prompt[count:]), whole)
            case "send", prompt, exclude:
                route = router.route(prompt, len(prompt) * BLOCK + 10, now_s=now_s, exclude=exclude)
                if route is None:
                    assert not any(one.open for name, one in plain.items() if name not in exclude)
                    continue
                assert route.replica not in exclude
                assert plain[route.replica].open
                assert route.overlap_tokens == plain[route.replica].overlap(prompt) * BLOCK
                router.began(route, now_s)
                plain[route.replica].running.append(route)
            case "end", which, evaluated:
                running = [(one, route) for one in plain.values() for route in one.running]
                if running:
                    one, route = running[which % len(running)]
                    one.running.remove(route)
                    if evaluated:
                        router.first_token(route, now_s)
                        one.ended.append((one.reports, route))
                    router.finished(route, now_s)
        for name, one in plain.items():
            assert router.load(name).sequences == len(one.running)
            assert router.load(name).waiting_tokens == sum(route.own_tokens for route in one.running)
            if one.open:
                for prompt in PROMPTS[:: len(PROMPTS) // 4]:
                    assert overlap(router, name, prompt) == one.overlap(prompt)
    for name in plain:
        router.remove(name)
    assert not router._index
    assert not router._evaluating


def test_a_block_counts_with_all_before_it() -> None:
    router = cluster()
    router.reported("b", PROMPTS[0][2:3])
    assert overlap(router, "b", PROMPTS[0]) == 3


def test_a_replica_that_was_not_measured_gets_its_share() -> None:
    router = cluster("ab")
    for number in range(6):
        prompt = range(1000 * number, 1000 * number + 8)
        route = router.route(prompt, 8 * BLOCK, now_s=10.0 * number)
        assert route is not None
        assert (number, route.replica) == (number, "ab"[number % 2])
        router.began(route, 10.0 * number)
        router.first_token(route, 10.0 * number + 0.01)
        router.finished(route, 10.0 * number + 0.02, evaluated=8 * BLOCK, generated=2)


def test_the_last_token_is_always_evaluated() -> None:
    router = cluster("a")
    router.reported("a", PROMPTS[0])
    route = router.route(PROMPTS[0], len(PROMPTS[0]) * BLOCK, now_s=0.0)
    assert route is not None
    assert route.own_tokens == 1


def test_whole_report_replaces_earlier_ones() -> None:
    router = cluster("a")
    router.reported("a", PROMPTS[0])
    router.reported("a", PROMPTS[-1][:3], whole=True)
    assert overlap(router, "a", PROMPTS[0]) == 0
    assert overlap(router, "a", PROMPTS[-1]) == 3
    assert router.load("a").blocks == 3


def test_promise_lasts_until_the_second_report_after_the_end() -> None:
    router = cluster("a")
    route = sent(router, PROMPTS[0])
    router.reported("a", PROMPTS[0])
    router.reported("a", [], PROMPTS[0])  # evicted before the request came
    router.reported("a", [])
    assert overlap(router, "a", PROMPTS[0]) == 6
    answered(router, route)
    router.reported("a", [], whole=True)  # may have been made before the end
    assert overlap(router, "a", PROMPTS[0]) == 6
    router.reported("a", PROMPTS[0][:2])
    assert overlap(router, "a", PROMPTS[0]) == 2


def test_promise_of_a_request_that_failed_before_its_first_token_ends_with_it() -> None:
    router = cluster("a")
    router.finished(sent(router, PROMPTS[0]), 1.0)
    assert overlap(router, "a", PROMPTS[0]) == 0


def test_promises_to_a_replica_that_never_reports_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "MAX_BLOCKS", 100)
    router = cluster("a")
    for number in range(50):
        answered(router, sent(router, range(number * 1000, number * 1000 + 6)))
    known = [number for number in range(50) if overlap(router, "a", range(number * 1000, number * 1000 + 6))]
    assert known == list(range(50 - 100 // 6, 50))


def test_reported_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "MAX_BLOCKS", 100)
    router = cluster("a")
    router.reported("a", range(1000))
    assert router.load("a").blocks == 100


# --- choices -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=2, max_size=5))
def test_longest_overlap_wins_when_loads_are_equal(counts: list[int]) -> None:
    router = cluster(NAMES[: len(counts)])
    for name, count in zip(NAMES, counts, strict=False):
        router.reported(name, PROMPTS[0][:count])
    route = sent(router, PROMPTS[0])
    assert route.overlap_tokens == max(counts) * BLOCK
    assert counts[NAMES.index(route.replica)] == max(counts)


def test_requests_of_one_prefix_go_together_also_before_it_is_reported() -> None:
    router = cluster(bound=8)
    assert len({sent(router, PROMPTS[0]).replica for _ in range(6)}) == 1


@given(st.floats(1, 4), st.lists(st.sampled_from(PROMPTS[:3]), min_size=1, max_size=40))
def test_no_replica_exceeds_the_bound_however_much_it_remembers(bound: float, prompts: list) -> None:
    router = cluster(bound=bound, parallel=2)
    router.reported("a", {digest for prompt in PROMPTS for digest in prompt})
    for number, prompt in enumerate(prompts):
        route = sent(router, prompt)
        assert router.load(route.replica).sequences <= max(2, bound * (number / len(NAMES) + 1))


def test_free_slots_of_a_replica_that_remembers_a_prompt_are_used_first() -> None:
    router = cluster(bound=1, parallel=4)
    router.reported("a", PROMPTS[0])
    chosen = [sent(router, PROMPTS[0]).replica for _ in range(5)]
    assert chosen[:4] == ["a"] * 4
    assert chosen[4] != "a"


def test_replica_with_a_prefix_is_left_when_its_queue_costs_more_than_the_prefix_saves() -> None:
    router = cluster("ab", bound=100)
    router.reported("a", PROMPTS[0][:2])
    assert sent(router, PROMPTS[0][:2]).replica == "a"
    long = router.route([], 3000, now_s=0.0, exclude=("b",))
    assert long is not None
    router.began(long, 0.0)
    assert sent(router, PROMPTS[-1]).replica == "b"
    # A long prompt that shares little would wait; one that is short then passes the long one.
    route = router.route(PROMPTS[0][:2], 4000, now_s=0.0)
    assert route is not None
    assert route.replica == "b"
    assert sent(router, PROMPTS[0][:2]).replica == "a"


def test_time_that_the_oldest_prompt_has_taken_counts() -> None:
    router = cluster("a")
    route = router.route([], 6000, now_s=0.0)
    assert route is not None
    assert route.expected_s == pytest.approx(10.0)
    router.began(route, 0.0)
    for now_s, expected_s in [(0.0, 20.0), (4.0, 16.0), (50.0, 10.0)]:
        next_route = router.route([], 6000, now_s=now_s)
        assert next_route is not None
        assert next_route.expected_s == pytest.approx(expected_s)


def test_request_behind_its_prefix_waits_for_all_of_it() -> None:
    router = cluster("a")
    first = sent(router, PROMPTS[0])
    route = router.route(PROMPTS[0], 6 * BLOCK + 10, now_s=0.0)
    assert route is not None
    assert route.own_tokens == 10
    assert route.expected_s == pytest.approx((first.own_tokens + 10) / 600)


def test_prompts_take_longer_beside_answers() -> None:
    router = cluster("a")
    route = router.route([], 600, now_s=0.0)
    assert route is not None
    router.began(route, 0.0)
    router.first_token(route, 1.0)
    beside = router.route([], 600, now_s=1.0)
    assert beside is not None
    assert beside.expected_s == pytest.approx(1 + 1 / 0.8)
    router.finished(route, 2.0)
    alone = router.route([], 600, now_s=2.0)
    assert alone is not None
    assert alone.expected_s == pytest.approx(1.0)


def test_replica_without_a_free_slot_is_avoided() -> None:
    router = cluster((), bound=100)
    add(router, "a", parallel=1, speed=1200)
    add(router, "b", parallel=4)
    assert [sent(router, [], now_s=float(number)).replica for number in range(5)] == ["a", "b", "b", "b", "b"]


def test_equal_replicas_take_turns_and_those_with_fewest_sequences_first() -> None:
    router = cluster("abc")
    chosen = []
    for _ in range(6):
        route = router.route([], 64, now_s=0.0)
        assert route is not None
        chosen.append(route.replica)
    assert chosen == ["a", "b", "c", "a", "b", "c"]
    busy = router.route([], 64, now_s=0.0, exclude=("b", "c"))
    assert busy is not None
    router.began(busy, 0.0)
    router.first_token(busy, 0.0)
    chosen = []
    for _ in range(4):
        route = router.route([], 64, now_s=0.0)
        assert route is not None
        chosen.append(route.replica)
    assert chosen == ["b", "c", "b", "c"]


def test_same_kernels_are_preferred_but_not_required() -> None:
    router = cluster("ab")
    add(router, "c", kernels="avx2", speed=100)
    route = router.route([], 1000, now_s=0.0, kernels="avx2")
    assert route is not None
    assert (route.replica, route.kernels) == ("c", "avx2")
    other = router.route([], 1000, now_s=0.0, kernels="avx2", exclude=("c",))
    assert other is not None
    assert other.kernels == "avx512"


def test_measured_speeds_replace_those_a_replica_was_added_with() -> None:
    router = cluster("a")
    for number in range(100):
        route = router.route([], 1000, now_s=100.0 * number)
        assert route is not None
        router.began(route, 100.0 * number)
        router.first_token(route, 100.0 * number + 4)
        router.finished(route, 100.0 * number + 14, evaluated=1000, generated=101)
    load = router.load("a")
    assert load.prompt_tokens_s == pytest.approx(250, rel=0.01)
    assert load.decode_tokens_s == pytest.approx(10, rel=0.01)


def test_speed_is_of_the_tokens_that_were_evaluated_whatever_was_expected() -> None:
    router = cluster("a")
    for number in range(100):
        route = router.route([], 1000, now_s=100.0 * number)
        assert route is not None
        router.began(route, 100.0 * number)
        router.first_token(route, 100.0 * number + 4)
        router.finished(route, 100.0 * number + 14, evaluated=400)
    assert router.load("a").prompt_tokens_s == pytest.approx(100, rel=0.01)


def test_prompts_evaluated_together_are_measured_by_the_time_of_all() -> None:
    router = cluster("a")
    for number in range(100):
        begin_s, routes = 100.0 * number, []
        for _ in range(4):
            route = router.route([], 500, now_s=begin_s)
            assert route is not None
            router.began(route, begin_s)
            routes.append(route)
        for place, route in enumerate(routes):
            router.first_token(route, begin_s + 5 + place)  # the first one shares 5 s with the others
            router.finished(route, begin_s + 20, evaluated=500)
    assert router.load("a").prompt_tokens_s == pytest.approx(2000 / 8, rel=0.1)


def test_short_prompts_and_unmeasured_requests_leave_the_speed_alone() -> None:
    router = cluster("a")
    for tokens, evaluated in [(20, 20), (1000, 20), (1000, None)]:
        route = router.route([], tokens, now_s=0.0)
        assert route is not None
        router.began(route, 0.0)
        router.first_token(route, 60.0)
        router.finished(route, 61.0, evaluated=evaluated)
    assert router.load("a").prompt_tokens_s == pytest.approx(600)


# --- mistakes ----------------------------------------------------------------------------------------


def test_unknown_replicas_are_key_errors() -> None:
    router = cluster("ab")
    route = router.route([], 1, now_s=0.0)
    assert route is not None
    router.remove(route.replica)
    for call in (router.remove, router.drain, router.load):
        with pytest.raises(KeyError):
            call(route.replica)
    with pytest.raises(KeyError):
        router.reported(route.replica, [1])
    with pytest.raises(KeyError):
        router.began(route, 0.0)


def test_what_becomes_of_requests_of_a_removed_replica_is_ignored() -> None:
    router = cluster("a")
    route = sent(router, PROMPTS[0])
    router.remove("a")
    answered(router, route)
    assert router.route([], 1, now_s=0.0) is None
    add(router, "a")
    answered(router, route)
    assert router.load("a").sequences == 0


def test_settings_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        Router(0.5)
    router = cluster("a")
    with pytest.raises(ValueError, match="known already"):
        add(router, "a")
    with pytest.raises(ValueError, match="not positive"):
        add(router, "b", parallel=0)
    with pytest.raises(ValueError, match="not positive"):
        add(router, "b", speed=float("nan"))
    monkeypatch.setattr(router_module, "MAX_REPLICAS", 1)
    with pytest.raises(ValueError, match="at most 1 replicas"):
        add(router, "b")
