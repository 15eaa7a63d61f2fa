"""`puna debug cache`."""

from __future__ import annotations

import re

import pytest

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
