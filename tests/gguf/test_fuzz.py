"""Randomly damaged files: reading one succeeds or raises GGUFError, quickly and in little memory."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from puna.errors import GGUFError
from puna.gguf import open_gguf
from tests.gguf import gguf_bytes as raw
from tests.gguf.test_hostile import read_everything, valid_file

VALID = valid_file()
MAX_MEMORY = 2_000_000  # bytes, for files of at most a few KB
LIMITS = {
    "deadline": timedelta(seconds=2),
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}

# Values for which lengths, counts and offsets tend to go wrong.
WORDS = st.sampled_from(
    [
        0,
        1,
        2,
        9,
        31,
        32,
        255,
        2**16,
        2**31,
        2**32 - 1,
        2**32,
        2**48,
        2**60,
        2**61 + 1,
        2**62,
        2**63,
        2**64 - 1,
    ]
)


def read_or_refuse(folder: Path, content: bytes) -> None:
    path = raw.save(folder, content)
    tracemalloc.start()
    try:
        with suppress(GGUFError), open_gguf(path) as file:
            read_everything(file)
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@settings(max_examples=400, **LIMITS)  # type: ignore[arg-type]
@given(edits=st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_files_with_changed_bytes_are_read_or_refused(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    content = bytearray(VALID)
    for position, value in edits:
        content[position] = value
    read_or_refuse(tmp_path, bytes(content))


@pytest.mark.slow
@settings(max_examples=400, **LIMITS)  # type: ignore[arg-type]
@given(position=st.integers(0, len(VALID) - 8), word=WORDS, size=st.sampled_from([4, 8]))
def test_files_with_extreme_numbers_are_read_or_refused(
    tmp_path: Path, position: int, word: int, size: int
) -> None:
    number = (word % 2 ** (8 * size)).to_bytes(size, "little")
    read_or_refuse(tmp_path, VALID[:position] + number + VALID[position + size :])


@pytest.mark.slow
@settings(max_examples=200, **LIMITS)  # type: ignore[arg-type]
@given(data=st.data())
def test_files_with_moved_pieces_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(VALID)))
    end = data.draw(st.integers(start, len(VALID)))
    piece = data.draw(st.one_of(st.just(VALID[start:end] * 2), st.binary(max_size=40)))
    read_or_refuse(tmp_path, VALID[:start] + piece + VALID[end:])


@pytest.mark.slow
@settings(max_examples=200, **LIMITS)  # type: ignore[arg-type]
@given(content=st.binary(max_size=400))
@example(b"GGUF")
def test_random_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    read_or_refuse(tmp_path, content)
    read_or_refuse(tmp_path, VALID[:24] + content)  # after a header that announces keys and tensors


@settings(max_examples=100, **LIMITS)  # type: ignore[arg-type]
@given(
    dimensions=st.lists(WORDS, max_size=6),
    kind=st.one_of(st.integers(0, 45), st.integers(0, 2**32 - 1)),
    offset=WORDS,
)
def test_tensors_of_any_shape_type_and_offset_are_read_or_refused(
    tmp_path: Path, dimensions: list[int], kind: int, offset: int
) -> None:
    read_or_refuse(tmp_path, raw.gguf([], [raw.tensor("t", dimensions, kind, offset)], bytes(600)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (raw.gguf(key_count=60_000), "key '' appears twice"),
        (raw.gguf(tensor_count=200_000), "0 dimensions"),
        (raw.gguf([raw.array_key("k", raw.UINT64, 2**26, b"")], tensor_count=1), "0 dimensions"),
        (raw.gguf([raw.array_key("k", raw.STRING, 2**17, b"")], tensor_count=1), "0 dimensions"),
        (raw.gguf([raw.array_key("k", raw.STRING, 2**26, b"")]), "at most 4194304 are allowed"),
        (raw.gguf([raw.key("k", raw.STRING, (2**29).to_bytes(8, "little"))]), "at most 67108864"),
    ],
)
def test_a_gigabyte_of_zeros_takes_little_memory(tmp_path: Path, content: bytes, message: str) -> None:
    """Zeros read as empty keys, strings and tensors, so the counts in the header fit the file."""
    path = raw.save(tmp_path, content)
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match=message):
            open_gguf(path)
        assert (
            tracemalloc.get_traced_memory()[1] < 4_000_000
        )  # 8 bytes per string, doubled when the array grows
    finally:
        tracemalloc.stop()
