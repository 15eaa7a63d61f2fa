"""Editors' limits: indentation and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.protocol import Chunk, Prompted
from puna.server.jobs.running import Progress, PromptProgress
from puna.server.jobs.service import Finished, Part
from puna.server.llamaserver.limits import LineLimits, within


@pytest.mark.parametrize(
    ("text", "indent", "kept"),
    [
        ("a\n    b\n  c", 4, "a\n    b\n  "),
        ("a\n\tb\nc", 1, "a\n\tb\n"),
        ("  a b\n  c", 2, "  a b\n  c"),
        ("a\n  b\n\n  c", 2, "a\n  b\n"),  # an empty line has no indentation
        ("a\n", 2, "a\n"),
        ("a\nb", 0, "a\nb"),
    ],
)
def test_an_answer_ends_before_a_line_with_less_indentation(text: str, indent: int, kept: str) -> None:
    found, ends = LineLimits(indent, 0).feed(text)
    assert found == kept
    assert ends == (kept != text)


@given(st.text("a \n\t", max_size=30), st.integers(0, 3), st.lists(st.integers(1, 5), max_size=30))
def test_the_end_does_not_depend_on_how_the_text_is_cut(text: str, indent: int, sizes: list[int]) -> None:
    whole = LineLimits(indent, 0).feed(text)
    limits, found, ends, rest = LineLimits(indent, 0), "", False, text
    for size in [*sizes, len(text)]:
        part, ends = limits.feed(rest[:size])
        found, rest = found + part, rest[size:]
        if ends or not rest:
            break
    assert (found, ends) == whole


def test_time_counts_from_the_first_text_and_ends_nothing_before_the_second_line() -> None:
    now_s = 100.0
    limits = LineLimits(0, 500, clock=lambda: now_s)
    assert limits.feed("a") == ("a", False)
    now_s += 0.6
    assert limits.feed("b") == ("b", False)
    assert limits.feed("c\n") == ("c\n", True)


def test_an_answer_cut_short_has_the_counts_of_its_prompt_and_its_tokens() -> None:
    closed = []

    async def parts() -> AsyncGenerator[Part, None]:
        try:
            yield Progress(prompt_progress=PromptProgress(total=3, cache=1, processed=3, time_ms=2.5))
            yield Prompted(id=1, text="abc", tokens=[7, 8, 9])
            yield Chunk(id=1, text="x\n", tokens=[1, 2])
            yield Chunk(id=1, text="y", tokens=[3])
            yield Chunk(id=1, text="never read", tokens=[4])
        finally:
            closed.append(True)

    async def run() -> list[Part]:
        return [part async for part in within(LineLimits(1, 0), parts())]

    found = asyncio.run(run())
    assert [part.text for part in found if isinstance(part, Chunk)] == ["x\n", ""]
    end = found[-1]
    assert isinstance(end, Finished)
    done = end.done
    assert (done.reason, done.prompt_eval_count, done.cached, done.eval_count) == ("length", 3, 1, 3)
    assert done.prompt_eval_duration == 2_500_000
    assert end.context == [7, 8, 9, 1, 2, 3]
    assert closed == [True]
