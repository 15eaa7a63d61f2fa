"""Damaged and malicious files are refused with a message that says what is wrong and where."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest

from puna.errors import GGUFError
from puna.gguf import GGMLType, GGUFFile, open_gguf
from tests.gguf import gguf_bytes as raw

F32 = GGMLType.F32
BAD_UTF8 = b"ab\xff\xfe"
NAME = r"model\.gguf: "


def one_tensor(dimensions: list[int], kind: int = F32, offset: int = 0, data: int = 64) -> bytes:
    return raw.gguf([], [raw.tensor("t", dimensions, kind, offset)], bytes(data))


CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", NAME + "the file is empty"),
    "other magic": (b"%PDF-1.4 and so on", NAME + r"not a GGUF file \(starts with b'%PDF'"),
    "short magic": (b"GG", NAME + r"not a GGUF file \(starts with b'GG'"),
    "old format": (b"tjgg" + bytes(100), NAME + "a GGJT file, a format older than GGUF"),
    "zip": (b"PK\x03\x04" + bytes(100), NAME + "a zip archive"),
    "big-endian magic": (b"FUGG" + bytes(100), NAME + "a big-endian GGUF file"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), NAME + "at byte 4: a big-endian GGUF file"),
    "version 1": (raw.gguf(version=1), NAME + "at byte 4: GGUF version 1 is not supported"),
    "version 4": (raw.gguf(version=4), NAME + "at byte 4: GGUF version 4 is not supported"),
    "only the magic": (b"GGUF", NAME + "at byte 4: the version needs 4 bytes, but only 0 are left"),
    "no counts": (b"GGUF\3\0\0\0\1", NAME + "at byte 8: the number of tensors needs 8 bytes"),
    "more keys than are allowed": (
        raw.gguf(key_count=65_537),
        NAME + r"at byte 24: the file claims to have 65537 keys \(at most 65536 are allowed\)",
    ),
    "more tensors than are allowed": (
        raw.gguf(tensor_count=262_145),
        NAME + r"at byte 24: the file claims to have 262145 tensors \(at most 262144 are allowed\)",
    ),
    "a longer text than is allowed": (
        raw.gguf([raw.key("name", raw.STRING, struct.pack("<Q", (64 << 20) + 1))]),
        NAME + r"at byte 40: the value of key 'name' claims to have 67108865 bytes \(at most 67108864 are",
    ),
    "key count beyond the file": (
        raw.gguf(key_count=60_000),
        NAME + "at byte 24: a list of 60000 keys needs 780000 bytes, but only 8 are left",
    ),
    "absurd key count": (
        raw.gguf(key_count=2**63),
        NAME + f"at byte 24: the file claims to have {2**63} keys",
    ),
    "absurd tensor count": (raw.gguf(tensor_count=2**64 - 1), NAME + f".*claims to have {2**64 - 1} tensors"),
    "tensor count beyond the file": (
        raw.gguf(tensor_count=9),
        NAME + "at byte 24: a list of 9 tensors needs",
    ),
    "key longer than the file": (
        raw.gguf([struct.pack("<Q", 500) + bytes(40)]),
        NAME + "at byte 32: the name of key 0 needs 500 bytes",
    ),
    "absurd key length": (
        raw.gguf([struct.pack("<Q", 2**62) + bytes(40)]),
        NAME + f"at byte 24: the name of key 0 claims to have {2**62} bytes",
    ),
    "key is not UTF-8": (
        raw.gguf([raw.key(BAD_UTF8, raw.BOOL, b"\1")]),
        NAME + "at byte 24: .*key 0 is not valid UTF-8",
    ),
    "value is not UTF-8": (
        raw.gguf([raw.text_key("name", BAD_UTF8)]),
        NAME + "at byte 40: the value of key 'name' is not valid UTF-8",
    ),
    "text longer than the file": (
        raw.gguf([raw.key("name", raw.STRING, struct.pack("<Q", 9999))]),
        NAME + "at byte 48: the value of key 'name' needs 9999 bytes",
    ),
    "unknown value type": (
        raw.gguf([raw.key("k", 13, bytes(8))]),
        NAME + "at byte 33: the type of key 'k' is 13, not 0 to 12",
    ),
    "unknown element type": (
        raw.gguf([raw.array_key("k", 99, 1, bytes(8))]),
        NAME + "at byte 37: the element type of key 'k' is 99",
    ),
    "array of arrays": (
        raw.gguf([raw.array_key("deep", raw.ARRAY, 1, struct.pack("<IQ", raw.ARRAY, 1) * 1000)]),
        NAME + "at byte 40: key 'deep' is an array of arrays",
    ),
    "array longer than the file": (
        raw.gguf([raw.array_key("k", raw.UINT64, 2**40, bytes(64))]),
        NAME + rf"at byte 49: array 'k' of {2**40} values needs {2**43} bytes",
    ),
    "array size beyond 64 bits": (
        raw.gguf([raw.array_key("k", raw.UINT64, 2**61 + 1, bytes(64))]),
        NAME + rf"at byte 49: array 'k' of {2**61 + 1} values needs {2**64 + 8} bytes",
    ),
    "strings longer than the file": (
        raw.gguf([raw.array_key("k", raw.STRING, 1_000_000, bytes(64))]),
        NAME + "at byte 49: array 'k' of 1000000 strings needs 8000000 bytes",
    ),
    "absurd number of strings": (
        raw.gguf([raw.array_key("k", raw.STRING, 2**60, bytes(64))]),
        NAME + rf"at byte 49: array 'k' of {2**60} strings is too long \(at most {2**22} are allowed",
    ),
    "string of an array beyond the file": (
        raw.gguf(
            [raw.array_key("k", raw.STRING, 3, raw.string("ab") + struct.pack("<Q", 2**63) + bytes(30))]
        ),
        NAME + "at byte 59: string 1 of array 'k' of 3 strings extends past the end of the file",
    ),
    "array ends inside a length": (
        raw.gguf([raw.array_key("k", raw.STRING, 3, raw.string("a" * 12) + raw.string("bb") + b"\1")])[:84],
        NAME + "at byte 79: string 2 of array 'k' of 3 strings extends past the end of the file",
    ),
    "duplicate key": (
        raw.gguf([raw.uint_key("k", 1), raw.uint_key("k", 2)]),
        NAME + "at byte 41: key 'k' appears twice",
    ),
    "alignment of zero": (
        raw.gguf([raw.uint_key("general.alignment", 0)]),
        NAME + ".*'general.alignment' is 0, not",
    ),
    "odd alignment": (
        raw.gguf([raw.uint_key("general.alignment", 48)]),
        NAME + ".*'general.alignment' is 48, not a power",
    ),
    "alignment as text": (
        raw.gguf([raw.text_key("general.alignment", "32")]),
        NAME + ".*'general.alignment' is '32', not a power of two",
    ),
    "tensor name is not UTF-8": (
        raw.gguf([], [raw.tensor(BAD_UTF8, [1], F32, 0)], bytes(32)),
        NAME + "at byte 24: the name of tensor 0 is not valid UTF-8",
    ),
    "directory ends early": (
        raw.gguf([], [raw.tensor("a long name", [1], F32, 0)])[:60],
        NAME + "at byte 59: the offset of tensor 'a long name' needs 8 bytes, but only 1 are left",
    ),
    "no dimensions": (one_tensor([]), NAME + "at byte 33: tensor 't' has 0 dimensions, not 1 to 4"),
    "five dimensions": (one_tensor([1, 1, 1, 1, 1]), NAME + "at byte 33: tensor 't' has 5 dimensions"),
    "absurd dimensions": (
        raw.gguf([], [raw.string("t") + struct.pack("<I", 2**31) + bytes(64)]),
        NAME + f"at byte 33: tensor 't' has {2**31} dimensions",
    ),
    "empty dimension": (one_tensor([4, 0]), NAME + "at byte 37: tensor 't' is empty \\(shape 0x4\\)"),
    "product beyond 64 bits": (
        one_tensor([2**32, 2**32, 2**32, 2**32]),
        NAME + "at byte 37: tensor 't' of 4294967296x.* F32 values is larger than the file",
    ),
    "product that wraps to a small number": (
        one_tensor([2**63, 2, 2**62, 4]),
        NAME + "at byte 37: tensor 't' of .* is larger than the file",
    ),
    "unknown type": (one_tensor([4], 77), NAME + "at byte 45: tensor 't' has unknown type 77"),
    "removed type": (one_tensor([32], 31), NAME + "at byte 45: tensor 't' has unknown type 31"),
    "partial block": (
        one_tensor([48, 2], GGMLType.Q8_0),
        NAME
        + "at byte 37: tensor 't' has rows of 48 values, which is not a multiple of the Q8_0 block size 32",
    ),
    "misaligned": (
        one_tensor([4], offset=16),
        NAME + "at byte 37: tensor 't' starts at offset 16, which is not a multiple of",
    ),
    "offset beyond the file": (
        one_tensor([4], offset=2**63),
        NAME + f"tensor 't' ends at byte {2**63 + 64 + 16}",
    ),
    "data cut off": (one_tensor([16], data=63), NAME + "tensor 't' ends at byte 128, but the file has 127"),
    "overlap": (
        raw.gguf([], [raw.tensor("a", [16], F32, 0), raw.tensor("b", [8], F32, 32)], bytes(64)),
        NAME + "tensors 'a' and 'b' overlap at byte 128",
    ),
    "same place": (
        raw.gguf([], [raw.tensor("b", [8], F32, 0), raw.tensor("a", [8], F32, 0)], bytes(64)),
        NAME + "tensors 'b' and 'a' overlap at byte 96",
    ),
    "duplicate tensor": (
        raw.gguf([], [raw.tensor("t", [8], F32, 0), raw.tensor("t", [8], F32, 32)], bytes(64)),
        NAME + "at byte 57: tensor 't' appears twice",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_refused_with_the_fault_and_its_place(case: str, tmp_path: Path) -> None:
    content, message = CASES[case]
    path = raw.save(tmp_path, content)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match=message):
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_bad_string_in_an_array_is_reported_when_read(tmp_path: Path) -> None:
    strings = raw.string("good") + raw.string(BAD_UTF8) + raw.string("also good")
    path = raw.save(tmp_path, raw.gguf([raw.array_key("tokens", raw.STRING, 3, strings)]))
    with open_gguf(path) as file:
        tokens = file.metadata["tokens"]
        assert tokens[0] == "good"  # type: ignore[index]
        assert tokens.raw(1) == BAD_UTF8  # type: ignore[union-attr]
        for read in (lambda: tokens[1], lambda: tokens.tolist(), lambda: list(tokens)):  # type: ignore
            with pytest.raises(GGUFError, match=NAME + "key 'tokens': string 1 is not valid UTF-8"):
                read()


def test_paths_that_are_not_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"nothing\.gguf: does not exist"):
        open_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(GGUFError, match="is not a regular file"):
        open_gguf(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # opening it would block forever
    with pytest.raises(GGUFError, match="pipe: is not a regular file"):
        open_gguf(tmp_path / "pipe")
    with pytest.raises(GGUFError, match=r"cannot be opened|does not exist"):
        open_gguf("a\0b")
    with pytest.raises(GGUFError, match=r"cannot be opened|does not exist"):
        open_gguf(tmp_path / ("x" * 300))


def valid_file() -> bytes:
    """Return a file that uses every part of the format."""
    keys = [
        raw.text_key("general.architecture", "llama"),
        raw.uint_key("llama.block_count", 1),
        raw.key("llama.rope.freq_base", raw.FLOAT64, struct.pack("<d", 1e6)),
        raw.array_key("tokenizer.ggml.tokens", raw.STRING, 3, b"".join(map(raw.string, ("a", "", "é")))),
        raw.array_key("llama.heads", raw.INT32, 2, struct.pack("<2i", 1, 2)),
    ]
    tensors = [
        raw.tensor("blk.0.attn_q.weight", [32, 2], GGMLType.Q8_0, 0),
        raw.tensor("output_norm.weight", [3], GGMLType.F32, 96),
    ]
    return raw.gguf(keys, tensors, bytes(96 + 12))


def read_everything(file: GGUFFile) -> None:
    for value in file.metadata.values():
        if hasattr(value, "tolist"):
            value.tolist()
    for name in file.tensors:
        file.array(name)
    file.get("general.name")
    _ = file.parameter_count


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    content = valid_file()
    with open_gguf(raw.save(tmp_path, content)) as file:
        read_everything(file)
    for size in range(len(content)):
        with pytest.raises(GGUFError, match=r"^model\.gguf: "):
            open_gguf(raw.save(tmp_path, content[:size]))
