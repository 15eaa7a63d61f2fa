"""Models on several nodes, since the memory of none suffices; connections are encrypted."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from puna.cli.cluster import _status_text
from tests import commands
from tests.cluster.clusters import Cluster, clustered
from tests.cluster.conftest import HAS_RAY
from tests.cluster.test_answers import SEEDED, endless, lines, merged, scripted
from tests.e2e import servers
from tests.e2e.servers import Server, add_model, environment, running
from tests.e2e.test_demo_vision import two_shapes
from tests.e2e.tools import calling
from tests.scripted import randomly_cut, write_scripted
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

#: Memory of each node, which is too little for caches of so many long answers, but enough for some layers.
SIZES = {"PUNA_CLUSTER_MEMORY_MB": "190", "PUNA_NUM_PARALLEL": "64"}


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and two workers, none of which has the memory for the models."""
    if not HAS_RAY:
        pytest.skip("ray is not installed: pip install '.[test]'")
    folder = tmp_path_factory.mktemp("divided")
    made = commands.run(
        "cluster", "init", env=environment(folder, PUNA_CLUSTER_FOLDER=str(folder / "credentials"))
    )
    assert made.returncode == 0, made.stderr
    config = TinyLlama(context=8192, seed=3, layers=3)
    with clustered(folder, 2, **SIZES) as cluster:
        path = tiny_llama_gguf(folder / "endless.gguf", config, model=servers.endless(config))
        add_model(cluster.server, "endless", path)
        path = write_scripted(
            folder / "scripted.gguf", randomly_cut(calling.SCRIPTS), template=calling.TEMPLATE, layers=2
        )
        add_model(cluster.server, "scripted", path)
        yield cluster


@pytest.fixture(scope="module")
def alone(divided: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of one machine."""
    with running(tmp_path_factory.mktemp("alone")) as server:
        add_model(server, "endless", divided.folder / "endless.gguf")
        yield server


def answer_of(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    with server.http.stream("POST", "/api/generate", json=body) as reply:
        return merged([json.loads(line) for line in reply.iter_lines()])


def stages(cluster: Cluster, model: str) -> list[dict[str, Any]]:
    """Return the stages of the only replica of a model, after checking that they are all of it."""
    [replica] = cluster.replicas(model).values()
    found: list[dict[str, Any]] = replica["stages"]
    assert len({stage["node"] for stage in found}) == len(found) > 1
    assert [stage["begin"] for stage in found] == [0, *(stage["end"] for stage in found[:-1])]
    return found


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"logprobs": True, "options": SEEDED | {"num_predict": 100}}, id="sampled"),
        pytest.param(
            {
                "options": SEEDED | {"num_predict": 100},
                "format": {"type": "array", "items": {"type": "integer"}, "minItems": 5, "maxItems": 5},
            },
            id="format",
        ),
    ],
)
def test_answers_of_a_model_too_large_for_any_node_are_those_of_one_machine(
    divided: Cluster, alone: Server, fields: dict[str, Any]
) -> None:
    found = merged(list(lines(divided, endless(**fields))))
    assert stages(divided, "endless")[-1]["end"] == 3
    assert answer_of(alone, endless(**fields)) == found


def test_costs_of_stages_are_shown(divided: Cluster) -> None:
    merged(list(lines(divided, endless(options=SEEDED | {"num_predict": 20}))))
    wait_until(lambda: stages(divided, "endless")[1]["token_us"], "measured costs")
    assert "LAYERS" in _status_text(divided.status())
    metrics = divided.server.http.get("/metrics").text
    assert 'puna_stage_bytes_total{model="endless:latest",stage="2"}' in metrics
    with divided.server.http.stream("GET", "/api/puna/live") as reply:
        line = next(line for line in reply.iter_lines() if line.startswith("data: "))
    [model] = json.loads(line[6:])["models"]
    assert [stage["end"] for stage in model["replicas"][0]["stages"]][-1] == 3


def test_connections_of_stages_are_encrypted(divided: Cluster) -> None:
    merged(list(lines(divided, endless(options=SEEDED | {"num_predict": 5}))))
    count = len(stages(divided, "endless"))
    runners = [each for node in [divided.machine(), *divided.workers] for each in node.runners()]
    assert len(runners) == count
    assert {each.environ()["RAY_USE_TLS"] for each in runners} == {"1"}


def test_an_answer_goes_on_elsewhere_when_a_stage_is_killed(divided: Cluster) -> None:
    body = endless(options=SEEDED | {"num_predict": 600})
    expected = merged(list(lines(divided, body)))
    stream = lines(divided, body)
    first = [next(stream) for _ in range(3)]
    node = stages(divided, "endless")[1]["node"]
    holder = divided.machine() if node == divided.head else divided.worker(node)
    for runner in holder.runners():
        runner.kill()
    assert merged([*first, *stream]) == expected


@pytest.mark.thorough
def test_draining_a_node_drains_the_models_that_are_partly_on_it(divided: Cluster) -> None:
    merged(list(lines(divided, endless(options=SEEDED | {"num_predict": 5}))))
    node = stages(divided, "endless")[1]["node"]
    divided.drain(node)
    assert divided.replicas("endless") == {}
    merged(list(lines(divided, endless(options=SEEDED | {"num_predict": 5}))))
    assert node not in [stage["node"] for stage in stages(divided, "endless")]
    divided.drain(node, undo=True)


def test_a_model_that_fits_on_a_node_is_not_divided(divided: Cluster, alone: Server) -> None:
    divided.unload()
    body = endless(options=SEEDED | {"num_predict": 100, "num_ctx": 2048})
    found = merged(list(lines(divided, body)))
    [replica] = divided.replicas("endless").values()
    assert replica["stages"] == []
    assert answer_of(alone, body) == found
    divided.unload()


@pytest.mark.thorough
def test_thoughts_and_calls_of_a_divided_model_are_parsed(divided: Cluster) -> None:
    found = merged(list(lines(divided, scripted(0, think=True, tools=calling.TOOLS))))
    assert stages(divided, "scripted")[1]["end"] == 2
    assert (found["thinking"].strip(), found["text"].strip()) == ("Let me look.", "I look.")
    assert [call["arguments"] for call in found["calls"]] == [calling.FIRST, calling.SECOND]
    divided.unload()


@pytest.mark.thorough
def test_pictures_of_a_divided_model_are_those_of_one_machine(divided: Cluster, alone: Server) -> None:
    picture = base64.b64encode(two_shapes()).decode()
    body = {
        "model": "demo-vision", "prompt": "What is in the picture?", "images": [picture],
        "options": {"temperature": 0, "num_predict": 20},
    }  # fmt: skip
    found = merged(list(lines(divided, body)))
    assert stages(divided, "demo-vision")[-1]["end"] == 3
    assert answer_of(alone, body) == found
