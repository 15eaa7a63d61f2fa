"""Models split into several files."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from puna.errors import GGUFError
from puna.gguf import GGMLType, open_gguf
from tests.gguf import gguf_bytes as raw


def part_bytes(number: int, count: int, names: list[str], total: int, *, first: bool) -> bytes:
    keys = [
        raw.key("split.no", raw.UINT16, struct.pack("<H", number)),
        raw.key("split.count", raw.UINT16, struct.pack("<H", count)),
        raw.key("split.tensors.count", raw.INT32, struct.pack("<i", total)),
    ]
    if first:
        keys.append(raw.text_key("general.architecture", "llama"))
    tensors = [raw.tensor(name, [2], GGMLType.F32, 32 * i) for i, name in enumerate(names)]
    data = b"".join(struct.pack("<2f", ord(name), number) + bytes(24) for name in names)
    return raw.gguf(keys, tensors, data)


def write_parts(folder: Path, parts: list[list[str]], total: int | None = None) -> list[Path]:
    count = len(parts)
    total = sum(map(len, parts)) if total is None else total
    return [
        raw.save(
            folder,
            part_bytes(i, count, names, total, first=i == 0),
            f"model-{i + 1:05}-of-{count:05}.gguf",
        )
        for i, names in enumerate(parts)
    ]


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_the_whole_model(tmp_path: Path, opened: int) -> None:
    paths = write_parts(tmp_path, [["a"], ["b", "c"], ["d"]])
    with open_gguf(paths[opened]) as file:
        assert file.paths == paths
        assert file.path == paths[0]
        assert file.architecture == "llama"
        assert list(file.tensors) == ["a", "b", "c", "d"]
        assert [tensor.file for tensor in file.tensors.values()] == [0, 1, 1, 2]
        assert file.array("c").tolist() == [ord("c"), 1]
        assert file.array("d").tolist() == [ord("d"), 2]
        assert file.parameter_count == 8


def test_a_single_part_needs_no_special_name(tmp_path: Path) -> None:
    path = raw.save(tmp_path, part_bytes(0, 1, ["a"], 1, first=True), "plain.gguf")
    with open_gguf(path) as file:
        assert list(file.tensors) == ["a"]


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [["a"], ["b"], ["c"]])
    paths[1].unlink()
    with pytest.raises(GGUFError, match=r"1 of 3 parts .* missing \(model-00002-of-00003\.gguf\)"):
        open_gguf(paths[0])


def test_a_part_under_another_name_is_explained(tmp_path: Path) -> None:
    path = raw.save(tmp_path, part_bytes(0, 2, ["a"], 2, first=True), "sha256-0123")
    with pytest.raises(GGUFError, match=r"sha256-0123: this is one of 2 parts .*'-00001-of-00002\.gguf'"):
        open_gguf(path)


def test_a_name_with_another_count_is_refused(tmp_path: Path) -> None:
    write_parts(tmp_path, [["a"], ["b"]])
    path = raw.save(tmp_path, part_bytes(0, 3, ["a"], 2, first=True), "model-00001-of-00002.gguf")
    with pytest.raises(GGUFError, match=r"one of 3 parts .*-00001-of-00003\.gguf"):
        open_gguf(path)


def test_parts_of_different_splits_are_not_mixed(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [["a"], ["b"], ["c"]])
    raw.save(tmp_path, part_bytes(1, 4, ["b"], 3, first=False), paths[1].name)
    with pytest.raises(GGUFError, match=r"00002-of-00003\.gguf: according to its metadata it is part 2 of 4"):
        open_gguf(paths[0])


def test_parts_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [["a"], ["b"], ["c"]])
    second, third = paths[1].read_bytes(), paths[2].read_bytes()
    paths[1].write_bytes(third)
    paths[2].write_bytes(second)
    with pytest.raises(
        GGUFError, match="according to its metadata it is part 3 of 3, but according to its name part 2 of 3"
    ):
        open_gguf(paths[0])


def test_a_wrong_tensor_total_is_refused(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [["a"], ["b"]], total=3)
    with pytest.raises(GGUFError, match=r"the parts hold 2 tensors, but 'split\.tensors\.count' says 3"):
        open_gguf(paths[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [["a"], ["a"]])
    with pytest.raises(GGUFError, match=r"00002-of-00002\.gguf: tensor 'a' is already in model-00001"):
        open_gguf(paths[0])


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [["a"], ["b"]])
    paths[1].write_bytes(paths[1].read_bytes()[:-30])
    with pytest.raises(GGUFError, match=r"model-00002-of-00002\.gguf: tensor 'b' ends at byte"):
        open_gguf(paths[0])


@pytest.mark.parametrize(
    ("kind", "value"), [(raw.STRING, raw.string("2")), (raw.INT32, struct.pack("<i", -1))]
)
def test_an_invalid_split_count_is_refused(tmp_path: Path, kind: int, value: bytes) -> None:
    path = raw.save(tmp_path, raw.gguf([raw.key("split.count", kind, value)]))
    with pytest.raises(GGUFError, match=r"key 'split\.count' of this split model must be a count, not "):
        open_gguf(path)
