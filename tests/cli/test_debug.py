"""`puna debug cache` and `puna debug memory`."""

from __future__ import annotations

import re

import pytest

from puna import demo
from puna.cli import main
from puna.cli.debug import describe
from puna.kvcache.picture import Contents, Held
from tests.cli.shell import Shell


@pytest.mark.e2e
def test_debug_cache_draws_what_a_model_holds(shell: Shell) -> None:
    shell.out("stop", "tiny")
    nothing = shell.run("debug", "cache")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == "Error: no model is in memory; load one first, as 'puna run MODEL' does\n"
    absent = shell.run("debug", "cache", "tiny")
    assert absent.stderr == "Error: model 'tiny' is not in memory; ask it something first\n"

    shell.out("run", "tiny", "--temperature", "0", "--num-predict", "4", "hello")
    text = shell.out("debug", "cache", "tiny")
    assert text == shell.out("debug", "cache")
    name, header, holders, positions, *more = [line for line in text.splitlines() if line.strip()]
    assert name == "tiny:latest"
    described = re.fullmatch(r"causal, layers 0-1: (\d+) of \d+ cells held, [\d.]+ [KMG]?B of memory", header)
    assert described
    columns = len(holders.split())
    assert len(set(holders.split()) - {"."}) <= 2  # perhaps the number of the first cell
    assert [int(p) for p in positions.split()][:5] == [0, 1, 2, 3, 4]
    assert bool(more) == (int(described[1]) > columns)
    shell.out("stop", "tiny")


def test_without_a_server_there_is_nothing_to_look_into(
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
        ("causal", [3], "causal, layer 3: 2 of 64 cells held, 1.5 MB of memory"),
        ("sliding", [0, 1, 2, 4], "sliding, layers 0-2, 4: 2 of 64 cells held, 1.5 MB of memory"),
        ("recurrent", [5, 7], "recurrent, layers 5, 7: 2 of 64 states held, 1.5 MB of memory"),
    ],
)
def test_caches_are_described_in_a_line(kind: str, layers: list[int], expected: str) -> None:
    assert describe(Contents(kind, layers, 64, 1_500_000, [Held([0, 1], [0, 1])])) == expected


def test_debug_memory_adds_up_what_a_model_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo model's sizes: 6 layers, 1,024 tokens of context at most."""
    assert main(["debug", "memory", str(demo.path()), "--parallel", "2", "--num-ctx", "4096"]) == 0
    head, _, columns, *rows = capsys.readouterr().out.splitlines()
    assert head == "1024 tokens of context for each of 2 requests at once"
    assert columns.split() == ["PART", "DEVICE", "WEIGHTS", "CACHE"]
    assert [row.split("  ")[0] for row in rows[:8]] == ["input", *(f"layer {i}" for i in range(6)), "output"]
    assert any(row.startswith("In all on CPU: ") for row in rows)
    assert main(["debug", "memory"]) == 1
    assert "name the model" in capsys.readouterr().err
