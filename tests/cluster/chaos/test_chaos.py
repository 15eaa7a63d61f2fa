"""The chaos: a short one, and which errors it takes for failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.chaos.chaos import chaos
from tests.cluster.chaos.faults import excuse
from tests.cluster.chaos.questions import whole
from tests.cluster.conftest import HAS_RAY
from tests.soak.asking import RefusedError

_CRASHED = RefusedError(200, "model runner has unexpectedly stopped, this may be due to resource limits")
_REFUSED = RefusedError(503, "the model crashed 3 times in a row and is not loaded again for another 4 s")


@pytest.mark.parametrize(
    ("error", "kills_s", "excused"),
    [
        (_CRASHED, [99.0, 101.0], "crashed"),
        (_CRASHED, [101.0], None),
        (_CRASHED, [1.0, 101.0], None),
        (_REFUSED, [1.0, 2.0, 3.0], "refused"),
        (_REFUSED, [1.0, 2.0], None),
        (RefusedError(500, "node box-1 is lost"), [99.0, 100.0, 101.0], None),
    ],
)
def test_only_runners_that_were_killed_excuse_errors(
    error: RefusedError, kills_s: list[float], excused: str | None
) -> None:
    assert excuse(error, 100.0, kills_s) == excused


def test_answers_are_compared_as_clients_have_them() -> None:
    def event(**delta: object) -> dict[str, object]:
        return {"choices": [{"index": 0, "delta": delta}]}

    call = {"function": {"name": "look", "arguments": '{"a": 1}'}}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    parts = [
        event(content="a"),
        event(content="b"),
        event(tool_calls=[{"index": 0, "function": {"name": "look", "arguments": '{"a"'}}]),
        event(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
    ]
    message = {"content": "ab", "tool_calls": [call]}
    single = usage | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    assert whole([*parts, end, usage]) == whole([single])
    assert whole([*parts, end, end, usage]) != whole([single])
    assert whole([*parts, *parts, end, usage]) != whole([single])


@pytest.mark.e2e
@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install '.[test]'")
def test_cluster_survives_random_faults(tmp_path: Path) -> None:
    chaos(tmp_path, seconds=20, seed=20, say=print)
