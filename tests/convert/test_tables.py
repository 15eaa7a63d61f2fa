"""Tables of families agree with the adapters, the engine and the documentation."""

from __future__ import annotations

import pytest

from bench.convertible import PAGE, with_table
from puna.architectures import ARCHITECTURES
from puna.convert.families.bitnet import ternary
from puna.convert.family import PERMUTED, Family
from puna.convert.plan import NAMES
from puna.convert.registry import text_families
from puna.model.published import LINEARS
from puna.model.registry import supported

#: Changes that keep the order of rows.
IN_PLACE = (None, ternary)
DECODERS = [family for family in text_families() if not family.kept]


def row_order(family: Family) -> str:
    """Return the row order in which PEFT adapters would have to be read, or "otherwise"."""
    orders = set()
    for theirs, ours in LINEARS.items():
        module = f"model.layers.{{}}.{theirs}"
        if family.names.get(module, NAMES[module]) != f"blk.{{}}.{ours}":
            return "otherwise"
        change = family.change(f"blk.0.{ours}.weight")
        if change not in (*IN_PLACE, PERMUTED.get(f"{ours}.weight")):
            return "otherwise"
        orders.add(change not in IN_PLACE)
    return "paired" if True in orders else "published"


@pytest.mark.parametrize("family", DECODERS, ids=lambda family: f"{family.architecture} {family.hf[0]}")
def test_adapters_are_read_in_the_row_order_of_converted_models(family: Family) -> None:
    if rows := ARCHITECTURES[family.architecture].rows:
        assert row_order(family) == rows


def test_every_convertible_architecture_can_be_run() -> None:
    assert {family.architecture for family in text_families()} <= set(supported())


def test_docs_page_lists_every_convertible_model() -> None:
    page = PAGE.read_text()
    assert with_table(page) == page, "run python bench/convertible.py"
