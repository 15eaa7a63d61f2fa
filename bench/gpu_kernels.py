"""Compiles every form of the GPU kernels ahead of time, without a GPU: registers and memory by device.

python bench/gpu_kernels.py                                          # writes docs/gpu.json: make docs-gpu
python bench/gpu_kernels.py --module norms --target sm_90 --print    # prints what it finds, as JSON

A form is named by `variants()` of its module. Pointers and sizes are taken to be multiples of 16, as those of
published models are, except where a kernel does not let itself be compiled for that.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import triton
from gpu_report import REPORT, TARGETS, Form, Run
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import puna.ops.gpu.kernels
from puna.ops.gpu.kernels.variant import Variant

PROGRAMS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def modules() -> list[str]:
    """Return the names of the modules whose kernels have forms."""
    found = [module.name for module in pkgutil.iter_modules(puna.ops.gpu.kernels.__path__)]
    return [name for name in found if hasattr(_module(name), "variants")]


def _module(name: str) -> Any:
    return importlib.import_module(f"puna.ops.gpu.kernels.{name}")


def forms(module: str, target: str, *, sample: bool = False) -> Iterator[Form]:
    """Compile the forms that a target launches, or one of each kernel as a `sample`."""
    seen = set()
    for variant in _module(module).variants():
        elsewhere = variant.targets and target not in variant.targets
        if elsewhere or variant.shared > TARGETS[target]:
            continue
        kernel = variant.kernel.fn.__name__
        if not (sample and kernel in seen):
            yield _form(module, kernel, variant, target)
        seen.add(kernel)


def _form(module: str, kernel: str, variant: Variant, target: str) -> Form:
    form = Form(module, kernel.strip("_").removesuffix("_kernel"), variant.name, target)
    try:
        compiled = compile_variant(variant, target)
    except Exception as error:  # whatever the compiler raises is what the table and the test report
        form.failure = f"{type(error).__name__}: {error}\n{error.__cause__ or ''}"[:2000]
        return form
    form.shared = compiled.metadata.shared
    form.registers, form.spilled = (
        _nvidia_usage(compiled.asm["cubin"])
        if "cubin" in compiled.asm
        else _amd_usage(compiled.asm["amdgcn"])
    )
    return form


def compile_variant(variant: Variant, target: str) -> Any:
    """Compile a variant for a target such as `sm_90` or `gfx942`."""
    names = variant.kernel.arg_names
    signature = {name: variant.signature[name] for name in names}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for number, (name, parameter) in enumerate(zip(names, variant.kernel.params, strict=True)):
        pointer, size = signature[name].startswith("*"), signature[name] in ("i32", "i64")
        if (pointer and not parameter.do_not_specialize_on_alignment) or (
            size and not parameter.do_not_specialize
        ):
            attributes[number,] = [["tt.divisibility", 16]]
    source = ASTSource(variant.kernel, signature, dict(variant.constants), attributes)
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    return triton.compile(source, target=gpu_target(target), options=options)


def gpu_target(name: str) -> GPUTarget:
    if name.startswith("sm_"):
        return GPUTarget("cuda", int(name.removeprefix("sm_")), 32)
    return GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)


def _nvidia_usage(binary: bytes) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes of memory it has instead of registers."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        shown = subprocess.run(
            [PROGRAMS / "cuobjdump", "--dump-resource-usage", file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", shown))
    return int(found["REG"]), int(found["STACK"]) + int(found["LOCAL"])


def _amd_usage(assembly: str) -> tuple[int, int]:
    """Return the vector registers of a thread, and the bytes of memory it has instead of registers."""
    found = dict(re.findall(r"\.(vgpr_count|private_segment_fixed_size):\s*(\d+)", assembly))
    return int(found["vgpr_count"]), int(found["private_segment_fixed_size"])


def _compiled(job: tuple[str, str, bool]) -> list[Form]:
    module, target, sample = job
    return list(forms(module, target, sample=sample))


def compile_all(chosen: Sequence[str], targets: Sequence[str], *, sample: bool = False) -> list[Form]:
    """Compile the forms of some modules for some targets, in one process per processor."""
    jobs = [(module, target, sample) for module, target in itertools.product(chosen, targets)]
    if len(jobs) == 1:
        return _compiled(jobs[0])
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
        return list(itertools.chain.from_iterable(pool.map(_compiled, jobs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", action="append", help="only this module of kernels; may be repeated")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this device")
    parser.add_argument("--sample", action="store_true", help="one form of each kernel")
    parser.add_argument("--print", action="store_true", help="print the forms as JSON, and write nothing")
    given = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("kernels are compiled only if TRITON_INTERPRET is not set")
    found = compile_all(given.module or modules(), given.target or list(TARGETS), sample=given.sample)
    if given.print:
        print(msgspec.json.encode([asdict(form) for form in found]).decode())
    else:
        REPORT.write(Run(found))


if __name__ == "__main__":
    main()
