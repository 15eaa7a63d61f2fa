"""Every form of every kernel compiles for NVIDIA's and AMD's devices, and fits in them; no GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "src" / "puna" / "ops" / "gpu" / "kernels"
MODULES = sorted(path.stem for path in KERNELS.glob("*.py") if "\ndef variants(" in path.read_text())
#: Bytes that a thread may keep in memory for lack of registers; none in other modules.
SPILLED = {
    "attention": 11264,  # for latent caches in F32; 8192 but on gfx1100
    "indexers": 512,  # on gfx1100, for blocks
    "matmul": 2048,  # on gfx1100, for few rows
    "recurrent": 8,  # on sm_100, to pool recent rows of a prompt
    "sampling": 8,  # on sm_90 and sm_100, for some vocabularies
}
#: Bytes that a block of threads can share.
SHARED = {
    "sm_80": 163 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "gfx942": 64 << 10,
    "gfx1100": 64 << 10,
}


def check(*options: str) -> set[str]:
    """Compile the chosen forms, assert that each fits its device, and return the names of their modules.

    Another process compiles, since this one interprets kernels.
    """
    command = [sys.executable, str(ROOT / "bench" / "gpu_kernels.py"), "--print", *options]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    forms: list[dict[str, Any]] = msgspec.json.decode(done.stdout)
    assert [f"{form['name']}: {form['failure']}" for form in forms if form["failure"]] == []
    assert [form for form in forms if form["registers"] == 0 or form["registers"] > 512] == []
    assert [form for form in forms if form["spilled"] > SPILLED.get(form["module"], 0)] == []
    assert [form for form in forms if form["shared"] > SHARED[form["target"]]] == []
    return {form["module"] for form in forms}


@pytest.mark.slow
def test_a_form_of_each_kernel_compiles_and_fits() -> None:
    assert check("--sample", "--target", "sm_90") == set(MODULES)


@pytest.mark.thorough
def test_kernels_compile_for_amds_devices() -> None:
    assert check("--sample", "--target", "gfx942", "--module", "recurrent") == {"recurrent"}


@pytest.mark.thorough
@pytest.mark.timeout(3600)  # the forms of attention take minutes
@pytest.mark.parametrize("target", SHARED)
@pytest.mark.parametrize("module", MODULES)
def test_every_form_compiles_and_fits(module: str, target: str) -> None:
    assert check("--target", target, "--module", module) == {module}
