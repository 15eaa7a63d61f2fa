"""Devices of this machine, and of machines simulated with files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from puna.devices import Gpu, devices
from puna.system import has_linux


def test_this_machine_has_a_processor_and_memory() -> None:
    found = devices()
    assert found.processor.usable == len(os.sched_getaffinity(0))
    assert found.processor.name
    assert found.memory == psutil.virtual_memory().total


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.skipif(not has_linux(), reason="only Linux lists processors and devices in files")
def test_gpus_are_found_where_the_kernel_lists_them(tmp_path: Path) -> None:
    pci = "sys/bus/pci/devices"
    for bus, vendor, kind, device in (
        ("0000:02:00.0", "0x1002", "0x038000", "0x740f"),
        ("0000:01:00.0", "0x10de", "0x030200", "0x2330"),
        ("0000:03:00.0", "0x1234", "0x030000", "0x1111"),  # a virtual machine's display
        ("0000:04:00.0", "0x8086", "0x020000", "0x10d3"),  # not a GPU
    ):
        for name, text in (("vendor", vendor), ("class", kind), ("device", device)):
            write(tmp_path, f"{pci}/{bus}/{name}", f"{text}\n")
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (tmp_path / pci / "0000:01:00.0/driver").symlink_to(tmp_path / "sys/bus/pci/drivers/nvidia")
    write(
        tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA H100 PCIe\nIRQ: 7\n"
    )
    write(tmp_path, f"{pci}/0000:02:00.0/mem_info_vram_total", "68702699520\n")
    write(tmp_path, "proc/cpuinfo", "model name\t: Some CPU\nflags\t\t: fpu avx avx2 fma f16c avx512f\n")
    found = devices(tmp_path)
    assert found.gpus == (
        Gpu("NVIDIA H100 PCIe", "0000:01:00.0", "nvidia", None),
        Gpu("AMD 0x740f", "0000:02:00.0", "", 68702699520),
    )
    assert (found.processor.name, found.processor.features) == (
        "Some CPU", ("avx", "avx2", "f16c", "fma", "avx512f"),
    )  # fmt: skip
    assert found.sentences()[0].startswith("Some CPU: ")
    described = "\n".join(found.sentences())
    assert "NVIDIA H100 PCIe (0000:01:00.0, nvidia)" in described
    assert "AMD 0x740f (0000:02:00.0, no driver, 68.7 GB)" in described
    assert found.note in described


@pytest.mark.parametrize(
    ("driver", "missing", "note"),
    [
        ("nvidia", (), "a GPU computes what fits its memory"),
        (
            "nvidia",
            ("triton",),
            "the processor computes: using GPUs needs triton, which the extra gpu installs",
        ),
        ("nvidia", ("torch", "triton"), "needs torch and triton, which the extra gpu"),
        ("i915", (), "needs a GPU by NVIDIA or AMD and its driver"),
        ("", (), "needs a GPU by NVIDIA or AMD and its driver"),
    ],
)
def test_note_says_what_the_gpu_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, missing: tuple[str, ...], note: str
) -> None:
    monkeypatch.setattr("puna.devices.find_spec", lambda name: None if name in missing else name)
    gpu = Gpu("NVIDIA H200", "0000:01:00.0", driver, None)
    assert note in replace(devices(tmp_path), gpus=(gpu,)).note


def test_machine_without_gpus_has_no_note_about_them(tmp_path: Path) -> None:
    assert devices(tmp_path).note == ""
