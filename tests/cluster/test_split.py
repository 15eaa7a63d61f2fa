"""A model on two nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from puna.cli.cluster import _status_text
from tests.cluster.clusters import Cluster, clustered
from tests.cluster.conftest import HAS_RAY
from tests.cluster.test_answers import SEEDED, endless, lines, merged
from tests.e2e import servers
from tests.e2e.servers import add_model, running
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and two workers, and a model whose layers are divided among two of them."""
    if not HAS_RAY:
        pytest.skip("ray is not installed: pip install '.[test]'")
    folder = tmp_path_factory.mktemp("divided")
    config = TinyLlama(context=8192, seed=3, layers=3)
    with clustered(folder, 2, PUNA_SPLIT="2,1") as cluster:
        path = tiny_llama_gguf(folder / "endless.gguf", config, model=servers.endless(config))
        add_model(cluster.server, "endless", path)
        yield cluster


def test_answers_of_a_divided_model_are_those_of_one_machine(divided: Cluster, tmp_path: Path) -> None:
    body = endless(options=SEEDED | {"num_predict": 100}, logprobs=True)
    found = merged(list(lines(divided, body)))
    [replica] = divided.replicas("endless").values()
    assert [(stage["begin"], stage["end"]) for stage in replica["stages"]] == [(0, 2), (2, 3)]
    assert len({stage["node"] for stage in replica["stages"]}) == 2
    wait_until(
        lambda: next(iter(divided.replicas("endless").values()))["stages"][1]["token_us"], "measured costs"
    )
    assert "LAYERS" in _status_text(divided.status())
    with running(tmp_path / "one") as server:
        add_model(server, "endless", divided.folder / "endless.gguf")
        with server.http.stream("POST", "/api/generate", json=body) as reply:
            assert merged([json.loads(line) for line in reply.iter_lines()]) == found


def test_an_answer_goes_on_elsewhere_when_a_stage_is_killed(divided: Cluster) -> None:
    body = endless(options=SEEDED | {"num_predict": 600})
    expected = merged(list(lines(divided, body)))
    stream = lines(divided, body)
    first = [next(stream) for _ in range(3)]
    [replica] = divided.replicas("endless").values()
    node = replica["stages"][1]["node"]
    holder = divided.machine() if node == divided.head else divided.worker(node)
    for runner in holder.runners():
        runner.kill()
    assert merged([*first, *stream]) == expected


def test_draining_a_node_drains_the_models_that_are_partly_on_it(divided: Cluster) -> None:
    merged(list(lines(divided, endless(options=SEEDED | {"num_predict": 5}))))
    [replica] = divided.replicas("endless").values()
    node = replica["stages"][1]["node"]
    divided.drain(node)
    assert divided.replicas("endless") == {}
    merged(list(lines(divided, endless(options=SEEDED | {"num_predict": 5}))))
    [replica] = divided.replicas("endless").values()
    assert node not in [stage["node"] for stage in replica["stages"]]
    divided.drain(node, undo=True)
