"""The PTX that unpacks codes, instruction by instruction: the interpreter runs another form of it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from puna.gguf import GGMLType
from puna.ops.gpu.kernels import formats
from puna.ops.gpu.packed import FORMATS

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)


def run(ptx: str, **registers: int) -> dict[str, int]:
    """Return the 32-bit registers after some instructions; those named `_1` are `$1`."""
    values = {name.replace("_", "$"): value for name, value in registers.items()}

    def value(name: str) -> int:
        return values[name] if name in values else int(name, 0)

    for line in re.sub(r"[{}]|\.reg[^;]*;", "", ptx).strip().rstrip(";").split(";"):
        name, _, rest = line.strip().partition(" ")
        target, *given = (part.strip() for part in rest.split(","))
        a, *others = (value(part) for part in given)
        match name:
            case "mov.b32":
                result = a
            case "shr.u32":
                result = a >> others[0]
            case "shl.b32":
                result = a << others[0]
            case "and.b32":
                result = a & others[0]
            case "lop3.b32":
                assert others[2] == 0xEA
                result = a & others[0] | others[1]
            case "prmt.b32":
                bytes = (a | others[0] << 32).to_bytes(8, "little")
                chosen = [others[1] >> 4 * i & 15 for i in range(4)]
                assert max(chosen) < 8
                result = int.from_bytes([bytes[i] for i in chosen], "little")
            case "sub.f16x2":
                halves = [np.array([part], np.uint32).view(np.float16) for part in (a, others[0])]
                result = int((halves[0] - halves[1]).view(np.uint32)[0])
            case _:
                pytest.fail(f"unknown instruction {name}")
        values[target] = result & 0xFFFFFFFF
    return values


def levels(ptx: str, **registers: int) -> list[float]:
    """Return the two float16 numbers in `$0`."""
    return np.array([run(ptx, **registers)["$0"]], np.uint32).view(np.float16).astype(float).tolist()


KINDS = [kind for kind, form in FORMATS.items() if form.bits <= 8 and form.levels != "iq4"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_instructions_find_the_level_of_each_code(kind: GGMLType) -> None:
    form, random = FORMATS[kind], np.random.default_rng(0)
    low_bits = form.bits if form.bits in (2, 4, 8) else 2 if form.bits == 3 else 4
    for j in range(form.chunk // 32):
        for _ in range(20):
            words, tops = random.integers(0, 1 << 16, 2).tolist(), random.integers(0, 1 << 16, 2).tolist()
            if form.bits in (3, 5):
                tops = [top & 255 for top in tops]
            codes = [word >> j * low_bits % 16 & (1 << low_bits) - 1 for word in words]
            upper = form.bits - low_bits
            codes = [
                code | (top >> j * upper & (1 << upper) - 1) << low_bits
                for code, top in zip(codes, tops, strict=True)
            ]
            ptx = formats._level_ptx(j, form.bits, form.levels)
            got = levels(ptx, _1=words[0] | words[1] << 16, _2=tops[0] | tops[1] << 16)
            if form.levels == "e2m1":
                assert [level * 2**14 for level in got] == [E2M1[code] for code in codes]
            else:
                assert got == [code - int(form.levels) for code in codes]


def test_instructions_look_up_the_levels_of_iq4_codes() -> None:
    for word in np.random.default_rng(1).integers(0, 1 << 32, 50).tolist():
        found = run(formats._iq4_ptx(), _2=word)
        for j in range(4):
            got = levels(formats._pair_ptx(j), _1=found["$0"], _2=found["$1"])
            assert got == [IQ4[word >> 4 * j & 15], IQ4[word >> 16 + 4 * j & 15]]


@pytest.mark.parametrize("byte", range(4))
def test_instructions_put_a_byte_into_the_last_bits_of_a_float(byte: int) -> None:
    found = run(formats._byte_ptx(byte), _1=0xD4C3B2A1)["$0"]
    assert np.array([found], np.uint32).view(np.float32)[0] - 2**23 == 0xD4C3B2A1 >> 8 * byte & 255
