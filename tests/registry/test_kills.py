"""Pulling, creating and pushing, killed at random moments: the store verifies at any time."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from puna.store import Store
from puna.store.verify import verify
from tests.registry import kills
from tests.registry.pulling import holds
from tests.registry.receiving import Receiving
from tests.registry.registries import Published, Registry, serving
from tests.store.store_files import write_gguf


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.gguf"
    write_gguf(path, "llama", parameters=500_000)
    return path


@pytest.mark.parametrize(
    "times",
    [pytest.param(18, id="some"), pytest.param(200, marks=pytest.mark.thorough, id="many")],
)
@pytest.mark.slow
def test_killed_operation_leaves_a_store_that_verifies(
    store: Store, large: Path, tmp_path: Path, times: int
) -> None:
    published = Published.of(large.read_bytes())
    chance = random.Random(times)
    with serving(Registry(published)) as registry, serving(Receiving()) as target:
        other = Store(tmp_path / "other")  # the model to push is here
        for digest, data in published.blobs.items():
            other.put_blob(digest, [data])
        other.put_manifest(f"{target.address}/team/model", published.manifest)
        operations: list[tuple[Store, tuple[Any, ...]]] = [
            (store, (kills.pulling, store.root, registry.name)),
            (store, (kills.creating, store.root, large, 0)),
            (other, (kills.pushing, other.root, target.name)),
        ]
        kills.seconds(kills.nothing)
        longest = [kills.seconds(*work) for _, work in operations]
        cut_off = [0] * len(operations)
        number = -1
        while min(cut_off) < times // 6:
            number += 1
            at = number % len(operations)
            checked, work = operations[at]
            if at == 0 and chance.random() < 0.7:  # start over; otherwise continue
                shutil.rmtree(store.root, ignore_errors=True)
            elif at == 1:
                work = (*work[:-1], number)
            elif at == 2 and chance.random() < 0.5:
                target.blobs.clear()
                target.manifests.clear()
            if kills.killed(chance, longest[at], *work):
                cut_off[at] += 1
            else:  # killed too late, perhaps because the machine was busier when measured
                longest[at] *= 0.9
            found = verify(checked)
            assert (found.damages, found.manifests) == ([], []), f"kill {number}"
            for manifest in target.manifests.values():
                value = json.loads(manifest)
                digests = {layer["digest"] for layer in (value["config"], *value["layers"])}
                assert digests <= target.blobs.keys()
        for _, work in operations:
            kills.seconds(*work)
    assert target.blobs == published.blobs
    assert holds(store, published)
    for each in (store, other):
        assert verify(each).damages == []
