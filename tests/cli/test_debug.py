"""`puna debug cache` and `puna debug memory`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from puna import demo
from puna.cli import main
from puna.cli.local import describe_contents as describe
from puna.cli.local import describe_memory
from puna.kvcache.contents import Contents, Held
from puna.model.memory import MemoryTable, PartMemory
from tests.cli.shell import Shell
from tests.waiting import wait_until


@pytest.mark.e2e
def test_debug_cache_draws_the_cells_in_use(shell: Shell) -> None:
    shell.out("stop", "tiny")
    nothing = shell.run("debug", "cache")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == "Error: no model is loaded; load one first with 'puna run MODEL'\n"
    absent = shell.run("debug", "cache", "tiny")
    assert absent.stderr == "Error: model 'tiny' is not in memory; ask it something first\n"

    shell.out("run", "tiny", "--temperature", "0", "--num-predict", "4", "hello")
    # The engine may still be tidying up.
    wait_until(lambda: shell.out("debug", "cache", "tiny") == shell.out("debug", "cache"), "the same picture")
    text = shell.out("debug", "cache")
    (shown,) = json.loads(shell.out("debug", "cache", "--json"))
    assert shown["name"] == "tiny:latest"
    name, header, holders, positions, *more = [line for line in text.splitlines() if line.strip()]
    assert name == "tiny:latest"
    described = re.fullmatch(
        r"causal, layers 0-1: (\d+) of \d+ cells in use, [\d.]+ [KMG]?B of memory", header
    )
    assert described
    columns = len(holders.split())
    assert len(set(holders.split()) - {"."}) <= 2  # one may be the number of the first cell
    assert [int(p) for p in positions.split()][:5] == [0, 1, 2, 3, 4]
    assert bool(more) == (int(described[1]) > columns)
    shell.out("stop", "tiny")


def test_debug_cache_needs_a_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUNA_HOST", "127.0.0.1:9")
    assert main(["debug", "cache"]) == 1
    assert "run 'puna serve' to start it" in capsys.readouterr().err
    assert main(["debug", "mind"]) == 1
    assert "Invalid value for 'WHAT'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "layers", "expected"),
    [
        ("causal", [3], "causal, layer 3: 2 of 64 cells in use, 1.5 MB of memory"),
        ("sliding", [0, 1, 2, 4], "sliding, layers 0-2, 4: 2 of 64 cells in use, 1.5 MB of memory"),
        ("recurrent", [5, 7], "recurrent, layers 5, 7: 2 of 64 states in use, 1.5 MB of memory"),
    ],
)
def test_a_cache_is_described_in_one_line(kind: str, layers: list[int], expected: str) -> None:
    assert describe(Contents(kind, layers, 64, 1_500_000, [Held([0, 1], [0, 1])])) == expected


def test_debug_memory_adds_up_the_parts_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo model has 6 layers and a context of at most 1,024 tokens."""
    assert main(["debug", "memory", str(demo.path()), "--parallel", "2", "--num-ctx", "4096"]) == 0
    head, _, columns, *rows = capsys.readouterr().out.splitlines()
    assert head == "Context of 1024 tokens for each of 2 parallel requests"
    assert columns.split() == ["PART", "DEVICE", "WEIGHTS", "CACHE"]
    assert [row.split("  ")[0] for row in rows[:8]] == ["input", *(f"layer {i}" for i in range(6)), "output"]
    assert any(row.startswith("Total on CPU: ") for row in rows)
    assert main(["debug", "memory", str(demo.path()), "--parallel", "2", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert (table["parallel"], table["context"], len(table["parts"])) == (2, 1024, 8)
    beside = table["activations"] + table["tokenizer"] + table["process"] + table["bookkeeping"]
    assert table["totals"] == {"CPU": beside + sum(one["weights"] + one["cache"] for one in table["parts"])}
    assert main(["debug", "memory"]) == 1
    assert "Usage: puna debug memory MODEL" in capsys.readouterr().err


def test_memory_of_a_rank_is_that_of_each() -> None:
    table = MemoryTable(8, 1, 8, (PartMemory("layer 0", "GPU 0", 1, 1),), activations=1, tokenizer=1)
    assert "GPUs that need as much each" not in describe_memory(table, 10)
    assert "GPUs that need as much each: 2" in describe_memory(replace(table, ranks=2), 10).splitlines()
