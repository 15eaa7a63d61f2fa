"""ARCHITECTURE.md: its pictures have the layers that are checked, and files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PICTURES = re.findall(r"^```\n(.*?)^```$", PAGE, re.M | re.S)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = {
    contract["containers"][0]: contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"
}


@pytest.mark.parametrize("container", ["puna", "puna.server"])
def test_the_picture_of_layers_has_those_that_are_checked(container: str) -> None:
    picture = next(picture for picture in PICTURES if picture.startswith("cli "))
    whole, _, server = picture.partition("\n  server:\n")
    lines = {"puna": whole, "puna.server": server}[container].strip().splitlines()
    assert [re.split(r"  +", line)[0] for line in lines] == LAYERS[container]


def test_files_in_the_pictures_exist() -> None:
    named = {name for picture in PICTURES for name in re.findall(r"[\w/]+\.py\b", picture)}
    assert len(named) >= 5
    assert [name for name in named if not any((ROOT / "src" / "puna").rglob(name))] == []
