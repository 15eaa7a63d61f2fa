"""Every scenario of the engine specification is in a test, or a text beside the tests says what replaced it.

Both name it: "scenario 5", "scenarios 5 and 6", "scenarios 7 to 9, 12", in text or, with underscores, in the
name of a test.

Of the bugs that the specification's history demands tests for, these concern the loop, what is remembered and
sampling. B1, B31: scenarios 148 and 150. B2, B3: scenarios 177 and 180. B6: scenario 200. B18, B19, B20:
scenarios 128, 134 and 141. B21: scenarios 126 and 127. B22: server/test_loaded.py. B23, B24: scenarios 142
and 204. B25: scenario 205. B26, B27: scenarios 174 to 176. B28, B29, B30: test_engine.py, where passes fail.
B32, B33: scenarios 160 and 166, in test_text.py. B34: scenarios 132 to 137. B35, B37: scenarios 109 and 110.
B38: no pieces of a prompt yet. B43: scenario 182. B48: test_options.py. B49: no token is logged. B51, B52,
B53: scenarios 209 to 220. B54: scenario 153. B56: scenario 179.
"""

from __future__ import annotations

import re
from pathlib import Path

#: Scenarios 236 and later are of loading.
EXPECTED = set(range(1, 236))

_BETWEEN = r",?\s(?:and\s)?"
_NUMBERS = r"\d+(?:\sto\s\d+)?"
_MENTION = re.compile(rf"[sS]cenarios?\s({_NUMBERS}(?:{_BETWEEN}{_NUMBERS})*)")


def numbers(text: str) -> set[int]:
    """The scenarios that `text` names."""
    found: set[int] = set()
    for mention in _MENTION.findall(text.replace("_", " ")):
        for part in re.findall(_NUMBERS, mention):
            ends = [int(end) for end in part.split() if end != "to"]
            found.update(range(ends[0], ends[-1] + 1))
    return found


def test_mentions_are_read_as_they_are_written() -> None:
    assert numbers("Scenario 5 and\nscenarios 7 to 9, 12 and 14; 20") == {5, 7, 8, 9, 12, 14}
    assert numbers("def test_scenarios_79_80_and_90_a_ring_drops_the_3_oldest") == {79, 80, 90}


def test_every_scenario_is_named() -> None:
    files = [path for path in Path(__file__).parent.rglob("test_*.py") if path != Path(__file__)]
    named = set().union(*(numbers(path.read_text()) for path in files))
    assert sorted(EXPECTED - named) == []
