"""Stored responses: bounded, for their owners only, and in the order of a conversation."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from puna.errors import RequestError, ResponseNotFoundError, StoreError
from puna.server.openai.responses.kept import Document, KeptResponses

PLENTY = 1 << 20


def name(number: int) -> str:
    return f"resp_{number:032x}"


def document(number: int, previous: int | None = None, owner: str = "", text: str = "x") -> Document:
    before = None if previous is None else name(previous)
    return Document({"id": name(number), "output": []}, [{"type": "message", "text": text}], before, owner)


def aged(folder: Path, *numbers: int) -> None:
    """Make these look as if last used in this order, hours ago."""
    for age, number in enumerate(numbers):
        used_s = time.time() - 36_000 + age
        os.utime(folder / f"{name(number)}.json", (used_s, used_s))


def test_stored_response_is_found_until_it_is_deleted(tmp_path: Path) -> None:
    kept = KeptResponses(tmp_path / "responses", PLENTY, PLENTY)
    assert kept.put(document(1))
    assert kept.get(name(1), "") == document(1)
    assert KeptResponses(tmp_path / "responses", PLENTY, PLENTY).get(name(1), "") == document(1)
    kept.delete(name(1), "")
    for act in (kept.get, kept.delete):
        with pytest.raises(ResponseNotFoundError, match="not found") as caught:
            act(name(1), "")
        assert caught.value.status == 404


def test_stored_files_are_private_to_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "responses"
    KeptResponses(folder, PLENTY, PLENTY).put(document(1))
    assert (folder.stat().st_mode & 0o777, (folder / f"{name(1)}.json").stat().st_mode & 0o777) == (
        0o700, 0o600,
    )  # fmt: skip


def test_responses_of_another_key_are_not_found(tmp_path: Path) -> None:
    kept = KeptResponses(tmp_path, PLENTY, PLENTY)
    kept.put(document(1, owner="ann"))
    kept.put(document(2, previous=1, owner="bob"))
    assert kept.get(name(1), "ann").owner == "ann"
    for act in (kept.get, kept.delete):
        with pytest.raises(ResponseNotFoundError):
            act(name(1), "bob")
    with pytest.raises(RequestError, match="not found"):
        kept.chain(name(2), "bob")


@pytest.mark.parametrize("id", ["", "resp_", "resp_../../x", "../secret", "resp_" + "g" * 32, "\0"])
def test_id_is_never_used_as_a_path(tmp_path: Path, id: str) -> None:
    (tmp_path / "secret.json").write_text("{}")
    with pytest.raises(ResponseNotFoundError):
        KeptResponses(tmp_path / "responses", PLENTY, PLENTY).get(id, "")


def test_chain_starts_with_the_oldest_and_needs_every_link(tmp_path: Path) -> None:
    kept = KeptResponses(tmp_path, PLENTY, PLENTY)
    for number in range(4):
        kept.put(document(number, previous=number - 1 if number else None))
    assert [one.response["id"] for one in kept.chain(name(3), "")] == [name(n) for n in range(4)]
    kept.delete(name(1), "")
    with pytest.raises(RequestError, match=rf"{name(1)}', which '{name(3)}' continues, not found"):
        kept.chain(name(3), "")
    with pytest.raises(RequestError, match="previous response"):
        kept.chain("resp_x", "")


def test_chain_longer_than_a_request_may_be_is_refused(tmp_path: Path) -> None:
    kept = KeptResponses(tmp_path, PLENTY, 1000)
    kept.put(document(0, text="x" * 600))
    kept.put(document(1, previous=0, text="x" * 600))
    assert len(kept.chain(name(0), "")) == 1
    with pytest.raises(RequestError, match="longer than a request may be"):
        kept.chain(name(1), "")


def test_circular_chain_is_refused(tmp_path: Path) -> None:
    kept = KeptResponses(tmp_path, PLENTY, 10_000)
    kept.put(document(0, previous=1))
    kept.put(document(1, previous=0))
    with pytest.raises(RequestError, match="longer than"):
        kept.chain(name(1), "")


def test_least_recently_used_response_makes_room(tmp_path: Path) -> None:
    kept = KeptResponses(tmp_path, 3500, PLENTY)
    for number in range(3):
        kept.put(document(number, text="x" * 1000))
    aged(tmp_path, 0, 1, 2)
    kept.chain(name(0), "")  # now the most recently used
    kept.put(document(3, text="x" * 1000))
    assert {path.stem for path in tmp_path.iterdir()} == {name(0), name(2), name(3)}
    assert not kept.put(document(4, text="x" * 4000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3500


def test_response_that_nobody_used_for_a_month_is_gone(tmp_path: Path) -> None:
    kept = KeptResponses(tmp_path, PLENTY, PLENTY)
    kept.put(document(1))
    long_ago_s = time.time() - 31 * 86_400
    os.utime(tmp_path / f"{name(1)}.json", (long_ago_s, long_ago_s))
    with pytest.raises(ResponseNotFoundError):
        kept.get(name(1), "")
    kept.put(document(2))
    assert [path.stem for path in tmp_path.iterdir()] == [name(2)]


def test_response_that_is_not_complete_cannot_be_continued(tmp_path: Path) -> None:
    kept = KeptResponses(tmp_path, PLENTY, PLENTY)
    kept.put(Document({"id": name(1), "output": [], "status": "in_progress"}, []))
    with pytest.raises(RequestError, match="not complete yet"):
        kept.chain(name(1), "")


def test_nothing_is_stored_if_no_room_is_configured(tmp_path: Path) -> None:
    assert not KeptResponses(tmp_path / "responses", 0, PLENTY).put(document(1))
    assert not (tmp_path / "responses").exists()


@pytest.mark.parametrize(
    "text",
    [
        b'{"response": {',
        b'{"response": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"response": {}, "input": []}',
        b'{"response": {"id": "resp_0", "output": []}, "input": []}',
        b'{"response": {"id": "%s", "output": [3]}, "input": []}' % name(1).encode(),
        b'{"response": {"id": "%s", "output": []}, "input": [{}]}' % name(1).encode(),
        b'{"response": {"id": "%s", "output": []}, "input": [], "previous": 3}' % name(1).encode(),
    ],
)
def test_damaged_file_counts_as_missing(tmp_path: Path, text: bytes) -> None:
    kept = KeptResponses(tmp_path, PLENTY, PLENTY)
    (tmp_path / f"{name(1)}.json").write_bytes(text)
    with pytest.raises(ResponseNotFoundError, match="not found"):
        kept.get(name(1), "")
    with pytest.raises(RequestError, match="not found"):
        kept.chain(name(1), "")
    assert kept.put(document(1))  # can be stored again
    assert kept.get(name(1), "") == document(1)


def test_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / f"{name(1)}.json").mkdir()
    with pytest.raises(StoreError, match="cannot read"):
        KeptResponses(tmp_path, PLENTY, PLENTY).get(name(1), "")
