"""A cluster of three nodes on this machine, with models that answer at length."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.cluster.clusters import Cluster, clustered
from tests.e2e.servers import add_model, endless
from tests.e2e.tools import calling
from tests.scripted import randomly_cut, write_scripted
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

HAS_RAY = importlib.util.find_spec("ray") is not None

#: What `scripted` says; a text of minutes is over too soon on a fast machine.
STORY = " ".join(f"Sentence {number} of the story." for number in range(300))
THOUGHT = " ".join(f"Thought {number} of many." for number in range(200))
CITY = "Lima and " * 300
SCRIPTS = [
    STORY,
    f"<think>\n{THOUGHT}\n</think>\n\n{STORY}",
    f"I look.\n{calling.call({'city': CITY, 'days': 2})}",
]


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and two workers; the head has the models, and gives its own work to them."""
    if not HAS_RAY:
        pytest.skip("ray is not installed: pip install '.[test]'")
    folder = tmp_path_factory.mktemp("cluster")
    config = TinyLlama(context=8192, seed=3)
    with clustered(folder, 2) as cluster:
        path = tiny_llama_gguf(folder / "endless.gguf", config, model=endless(config))
        add_model(cluster.server, "endless", path)
        scripted = randomly_cut(SCRIPTS)
        template = calling.TEMPLATE
        add_model(
            cluster.server, "scripted", write_scripted(folder / "scripted.gguf", scripted, template=template)
        )
        yield cluster


@pytest.fixture
def workers(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with nothing in memory, whose models go to its two workers."""
    cluster.unload()
    while len(cluster.workers) < 2:
        cluster.join()
    cluster.drain(cluster.head)
    yield cluster
    cluster.drain(cluster.head, undo=True)
