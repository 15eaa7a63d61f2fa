"""The devices of this machine: its processor and GPUs, as reported by the kernel.

No vendor's tool or library is used. Sizes are in bytes.
"""

from __future__ import annotations

import platform
import re
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psutil

from puna.system import text_of
from puna.system.processors import processor_description, usable_processors

#: Instruction sets that the choice of kernels or models depends on, as in /proc/cpuinfo.
_FEATURES: Final = (
    "avx", "avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile",
    "amx_int8", "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip
_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
#: Drivers of GPUs that Puna's own engine can use.
_COMPUTING: Final = ("nvidia", "amdgpu")
#: PCI classes of GPUs and other accelerators.
_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")


@dataclass(frozen=True)
class Processor:
    """The processor: physical `cores`, `logical` cores, and those of them `usable` by this process."""

    name: str
    cores: int | None
    logical: int | None
    usable: int
    features: tuple[str, ...]


@dataclass(frozen=True)
class Gpu:
    """A GPU, which is of no use without a driver."""

    name: str
    bus: str
    driver: str
    memory: int | None


@dataclass(frozen=True)
class Devices:
    processor: Processor
    memory: int
    gpus: tuple[Gpu, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def note(self) -> str:
        """A note on the use of GPUs; empty if there are none."""
        if not self.gpus:
            return ""
        if not any(gpu.driver in _COMPUTING for gpu in self.gpus):
            return (
                "the processor computes: Puna's own engine needs a GPU by NVIDIA or AMD and its driver; "
                "llama.cpp may use others (PUNA_ENGINE=llamacpp)"
            )
        if missing := [name for name in ("torch", "triton") if find_spec(name) is None]:
            return (
                f"the processor computes: using GPUs needs {' and '.join(missing)}, which the extra gpu "
                "installs (pip install 'puna[gpu]')"
            )
        return "a GPU computes what fits its memory; 'puna doctor' says which one, or why none does"

    def sentences(self) -> list[str]:
        """Return a line for each device."""
        cpu = self.processor
        features = ", ".join(cpu.features) or "no relevant vector instructions"
        lines = [f"{cpu.name}: {cpu.cores} cores, {cpu.usable} usable threads; {features}"]
        lines.append(f"{self.memory / 1e9:.1f} GB of memory")
        for gpu in self.gpus:
            memory = f", {gpu.memory / 1e9:.1f} GB" if gpu.memory else ""
            lines.append(f"{gpu.name} ({gpu.bus}, {gpu.driver or 'no driver'}{memory})")
        return lines + ([self.note] if self.note else [])


@cache
def devices(root: Path = Path("/")) -> Devices:
    """Return the devices of the machine whose files are below `root`."""
    return Devices(_processor(root), psutil.virtual_memory().total, tuple(_gpus(root)))


def _processor(root: Path) -> Processor:
    text = processor_description(root)
    names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)[:1]).split())
    return Processor(
        name=names[0].strip() if names else platform.processor() or platform.machine(),
        cores=psutil.cpu_count(logical=False),
        logical=psutil.cpu_count(),
        usable=usable_processors(),
        features=tuple(feature for feature in _FEATURES if feature in flags),
    )


def _gpus(root: Path) -> list[Gpu]:
    found = []
    for folder in _folders(root / "sys/bus/pci/devices"):
        vendor = _VENDORS.get(text_of(folder / "vendor").strip())
        # Other vendors' devices are the displays of virtual machines.
        if vendor is None or not text_of(folder / "class").startswith(_CLASSES):
            continue
        driver = folder / "driver"
        memory = text_of(folder / "mem_info_vram_total").strip()
        found.append(
            Gpu(
                name=f"{vendor} {_model(root, folder)}",
                bus=folder.name,
                driver=driver.resolve().name if driver.exists() else "",
                memory=int(memory) if memory.isdigit() else None,
            )
        )
    return found


def _model(root: Path, folder: Path) -> str:
    """Return the device's name in its driver, or else its number."""
    information = text_of(root / "proc/driver/nvidia/gpus" / folder.name / "information")
    if named := re.search(r"^Model:\s*(?:NVIDIA\s+)?(.+)$", information, re.MULTILINE):
        return named[1].strip()
    return text_of(folder / "product_name").strip() or text_of(folder / "device").strip()


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
