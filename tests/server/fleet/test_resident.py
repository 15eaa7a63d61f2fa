from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from puna.options import Options
from puna.server.fleet.resident import LoadPlan, ResidentModel, victim
from puna.store import StoredModel

MODEL = cast("StoredModel", SimpleNamespace(name="m"))


def plan(**values: Any) -> LoadPlan:
    return LoadPlan.of(Options(**values), default_num_ctx=4096)


def entry(path: str, keep_alive_s: float, users: int = 0) -> ResidentModel:
    return ResidentModel(model=MODEL, path=path, plan=plan(), keep_alive_s=keep_alive_s, users=users)


def test_default_context_applies_when_none_is_given() -> None:
    assert plan() == LoadPlan(num_ctx=4096, num_batch=512, num_thread=0)


@pytest.mark.parametrize(
    ("loaded", "wanted", "context_length", "serves"),
    [
        ({}, {}, 4096, True),
        ({}, {"temperature": 0.1}, 4096, True),
        ({}, {"num_ctx": 4096}, 4096, True),
        ({}, {"num_ctx": 2048}, 4096, True),  # the request's own limit
        ({}, {"num_ctx": 100}, 4096, True),
        ({"num_ctx": 2048}, {}, 2048, False),
        ({}, {"num_thread": 1}, 4096, False),
        ({"num_thread": 4095}, {"num_thread": 4096}, 4096, True),  # both exceed the number of processors
        ({}, {"num_batch": 64}, 4096, False),
        ({}, {"num_gpu": 0, "main_gpu": 1, "use_mmap": True}, 4096, True),
        # the model was trained for only 256 tokens
        ({}, {"num_ctx": 10_000}, 256, True),
        ({}, {"num_ctx": 300}, 256, True),
        ({}, {"num_ctx": 256}, 256, True),
        ({}, {"num_ctx": 255}, 256, True),
        ({"num_ctx": 255}, {"num_ctx": 256}, 255, False),
    ],
)
def test_only_different_load_options_cause_a_reload(
    loaded: dict[str, Any], wanted: dict[str, Any], context_length: int, serves: bool
) -> None:
    assert plan(**loaded).serves(plan(**wanted), context_length) is serves


@pytest.mark.parametrize(
    ("loaded", "wanted", "runs", "serves"),
    [
        ({}, {"engine": "puna"}, "puna", True),
        ({"engine": "puna"}, {}, "puna", True),
        ({}, {"engine": "llamacpp"}, "puna", False),
        ({}, {"engine": "llamacpp"}, "llamacpp", True),
        ({"engine": "llamacpp"}, {}, "llamacpp", False),  # Puna's own engine may support the model
        ({}, {"engine": "puna"}, "llamacpp", False),
        ({}, {"num_gpu": 4}, "puna", True),
        ({}, {"num_gpu": 4}, "llamacpp", False),
        ({}, {"use_mmap": True}, "llamacpp", True),
    ],
)
def test_another_engine_or_placement_causes_a_reload(
    loaded: dict[str, Any], wanted: dict[str, Any], runs: str, serves: bool
) -> None:
    assert plan(**loaded).serves(plan(**wanted), 4096, runs) is serves


@pytest.mark.parametrize(
    ("loaded", "wanted", "serves"),
    [
        (-1, 99, True), (-1, 0, False), (0, 0, True), (0, -1, False), (-1, 20, True), (-1, 19, False),
        (5, 5, True), (5, 6, False), (5, -1, False), (25, 30, True),
    ],
)  # fmt: skip
def test_a_model_moves_between_gpu_and_processor_only_where_it_can(
    loaded: int, wanted: int, serves: bool
) -> None:
    here, there = plan(num_gpu=loaded), plan(num_gpu=wanted)
    assert here.serves(there, 4096, fitting=20) is serves
    assert here.serves(there, 4096), "num_gpu has no effect on this machine"
    longer = plan(num_gpu=wanted, num_ctx=8192)
    assert here.grows_to(longer, 4096, 8192, fitting=20) is serves


def test_a_model_moves_between_gpus_only_where_there_are_several() -> None:
    here = plan()
    for there in (plan(main_gpu=1), plan(tensor_split=(1.0, 2.0))):
        assert not here.serves(there, 4096, fitting=20, gpus=2)
        assert here.serves(there, 4096, fitting=20, gpus=1)
        assert plan(num_gpu=0).serves(replace(there, placement=plan(num_gpu=0, main_gpu=1).placement), 4096)


@pytest.mark.parametrize(
    ("loaded", "wanted", "max_context", "grows"),
    [
        ({}, {"num_ctx": 8192}, 32768, True),
        ({}, {"num_ctx": 32769}, 32768, False),
        ({}, {"num_ctx": 2048}, 32768, False),  # already served without growing
        ({}, {"num_ctx": 8192, "num_thread": 1}, 32768, False),
        ({"num_ctx": 100}, {}, 32768, True),
    ],
)
def test_context_can_grow_if_nothing_else_differs(
    loaded: dict[str, Any], wanted: dict[str, Any], max_context: int, grows: bool
) -> None:
    before = plan(**loaded)
    assert before.grows_to(plan(**wanted), before.num_ctx, max_context) is grows


def test_different_context_causes_a_reload_where_it_affects_results() -> None:
    assert not plan().serves(plan(num_ctx=2048), 4096, exact_context=True)
    assert plan().serves(plan(num_ctx=4096), 4096, exact_context=True)


def test_another_draft_model_causes_a_reload() -> None:
    with_draft = LoadPlan.of(Options(), 4096, "/models/small.gguf")
    assert with_draft.serves(with_draft, 4096)
    assert not with_draft.serves(plan(), 4096)
    assert not plan().serves(with_draft, 4096)


def test_idle_model_with_the_shortest_keep_alive_is_evicted_first() -> None:
    busy = entry("a", 10, users=1)
    short = entry("c", 60)
    long = entry("b", math.inf)
    assert victim([long, short, busy]) is short
    assert victim([long, busy]) is long


def test_ties_between_models_are_broken_by_path() -> None:
    first, second = entry("a", 60), entry("b", 60)
    assert victim([second, first]) is first


def test_model_with_the_shortest_keep_alive_is_evicted_if_all_are_busy() -> None:
    short, long = entry("b", 60, users=2), entry("a", 300, users=1)
    assert victim([long, short]) is short
    assert victim([]) is None


def test_expiry_is_given_in_wall_clock_time() -> None:
    model = entry("a", 300)
    before = time.time()
    model.touch()
    assert before + 300 <= model.expires_ns / 1e9 <= time.time() + 300
    model.keep_alive_s = math.inf
    model.touch()
    assert model.expires_ns > 2**63 - 1  # more than 292 years from now
