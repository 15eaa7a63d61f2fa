"""Build and run the fuzzer of the C++ code that reads a file's blocks, with libFuzzer and sanitizers.

    make fuzz-native MINUTES=30        # needs clang and its runtime (Debian: clang, libclang-rt-dev)

Without them the Python fuzzer does the same, more slowly, on the build of `make test-sanitize`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.native.builds import build_folder, is_newer  # noqa: E402 (run as a script too)

FLAGS = (
    "-std=c++20", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all",
    f"-I{ROOT / 'csrc'}",
)  # fmt: skip
SOURCES = [
    ROOT / "tests/native/fuzz/weights.cpp",
    *sorted((ROOT / "csrc/weights").glob("*.cpp")),
    *sorted((ROOT / "csrc/matrix").glob("pack*.cpp")),
]


def program() -> Path | str:
    """Return the path of the fuzzer, rebuilt if anything changed, or the reason it cannot be built."""
    compiler = shutil.which("clang++")
    if compiler is None:
        return "there is no clang++"
    with build_folder("fuzz", compiler, *FLAGS) as folder:
        harness = folder / "nothing.cpp"
        harness.write_text(
            'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
        )
        probe = subprocess.run(
            [compiler, *FLAGS, harness, "-o", folder / "nothing"], capture_output=True, text=True, check=False
        )
        if probe.returncode:
            return f"clang++ has no libFuzzer: {probe.stderr.strip()[-200:]}"
        built = folder / "weights"
        if not is_newer(built, [*SOURCES, *(ROOT / "csrc").rglob("*.h")]):
            subprocess.run([compiler, *FLAGS, *SOURCES, "-o", built], check=True)
        return built


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Feed random bytes to the C++ code that reads a file's blocks."
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    fuzzer = program()
    if isinstance(fuzzer, str):
        print(f"{fuzzer} (Debian: clang, libclang-rt-dev); using Python on the sanitizers' build", flush=True)
        sanitize = ROOT / "tests/native/sanitize.py"
        command = [sys.executable, sanitize, "-m", "tests.fuzz", "--target", "weights"]
        return subprocess.run([*command, "--minutes", str(given.minutes)], cwd=ROOT, check=False).returncode
    kept = ROOT / "build" / "fuzz"
    corpus = kept / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    seconds = max(int(given.minutes * 60), 1)
    options = [f"-max_total_time={seconds}", "-max_len=4096", f"-artifact_prefix={kept}/weights-"]
    return subprocess.run([fuzzer, *options, corpus], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
