"""Subtitles, as players read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from puna.audio.subtitles import srt, vtt


@dataclass(frozen=True)
class Part:
    start_s: float
    end_s: float
    text: str


PARTS = [Part(0.0, 1.5, " Good morning."), Part(3661.0215, 3723.9999, " Tom & <Jerry> --> gone")]


def test_srt_has_numbers_and_commas() -> None:
    assert srt(PARTS) == (
        "1\n00:00:00,000 --> 00:00:01,500\nGood morning.\n\n"
        "2\n01:01:01,022 --> 01:02:04,000\nTom & <Jerry> -> gone\n\n"
    )


def test_vtt_has_a_header_and_escapes_markup() -> None:
    assert vtt(PARTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nGood morning.\n\n"
        "01:01:01.022 --> 01:02:04.000\nTom &amp; &lt;Jerry> --&gt; gone\n\n"
    )


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=5))
def test_no_text_ends_a_part_or_begins_another(texts: list[str]) -> None:
    parts = [Part(number, number + 1, text) for number, text in enumerate(texts)]
    times = re.compile(r"^\d\d:\d\d:\d\d[.,]\d{3} --> \d\d:\d\d:\d\d[.,]\d{3}$", re.M)
    for written in (srt(parts), vtt(parts)):
        assert written.count("-->") == len(times.findall(written)) == len(parts)
    assert len(re.findall(r"[^\n]+(?:\n[^\n]+)*", srt(parts))) == len(parts)
