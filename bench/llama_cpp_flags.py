"""Print the CMAKE_ARGS that build llama.cpp with the instruction sets of this machine.

`GGML_NATIVE=ON` would do the same, but llama-cpp-python's build turns it off. With AMX, compilers as
old as GCC 12 need one more flag: their intrinsic for `ldtilecfg` declares only 8 of the 64 bytes that
the instruction reads, so -O2 removes the stores of the others as dead, and the processor faults on a layout
of zeros. `-fno-dse` keeps the stores (`-fno-tree-dse` alone does not).
"""

from __future__ import annotations

import platform
from pathlib import Path

#: llama.cpp's build options and the flags in /proc/cpuinfo they require.
SWITCHES = {
    "GGML_SSE42": "sse4_2",
    "GGML_AVX": "avx",
    "GGML_AVX2": "avx2",
    "GGML_FMA": "fma",
    "GGML_F16C": "f16c",
    "GGML_BMI2": "bmi2",
    "GGML_AVX_VNNI": "avx_vnni",
    "GGML_AVX512": "avx512f",
    "GGML_AVX512_VBMI": "avx512_vbmi2",
    "GGML_AVX512_VNNI": "avx512_vnni",
    "GGML_AVX512_BF16": "avx512_bf16",
    "GGML_AMX_TILE": "amx_tile",
    "GGML_AMX_INT8": "amx_int8",
    "GGML_AMX_BF16": "amx_bf16",
}


def cmake_arguments() -> str:
    """Return the `-DGGML_...` options; on architectures other than x86-64, llama.cpp chooses."""
    if platform.machine() != "x86_64":
        return "-DGGML_NATIVE=ON"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    options = [f"-D{switch}={'ON' if flag in flags else 'OFF'}" for switch, flag in SWITCHES.items()]
    if "amx_tile" in flags:
        options += ["-DCMAKE_C_FLAGS=-fno-dse", "-DCMAKE_CXX_FLAGS=-fno-dse"]
    return " ".join(["-DGGML_NATIVE=OFF", *options])


if __name__ == "__main__":
    print(cmake_arguments())
