"""Random adapters of tiny models, as files and merged into the weights of their originals."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from puna.gguf import GGMLType, GGUFWriter

Halves = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class TinyAdapter:
    """What is added to `modules` of every layer of a model of transformers, and to its output if named so."""

    modules: tuple[str, ...]
    rank: int = 4
    alpha: float = 8.0
    seed: int = 0

    def halves(self, model: Any) -> Halves:
        """(A, B) by the names of the modules they change."""
        torch.manual_seed(self.seed)
        found: Halves = {}
        for name, module in model.named_modules():
            if name.endswith(self.modules):
                outputs, inputs = module.weight.shape
                a = torch.randn(self.rank, inputs) / inputs**0.5
                found[name] = a, 0.3 * torch.randn(outputs, self.rank)
        return found

    def merged(self, model: Any, scale: float) -> Any:
        """A copy of `model` whose weights are W + scale * alpha / rank * B A."""
        changed = copy.deepcopy(model)
        modules = dict(changed.named_modules())
        with torch.no_grad():
            for name, (a, b) in self.halves(model).items():
                modules[name].weight += scale * self.alpha / self.rank * b @ a
        return changed

    def write_gguf(self, path: Path, architecture: str, model: Any, names: Mapping[str, str]) -> Path:
        """As llama.cpp's converter writes it; `names` are the tensors' in files, by the ends of modules'."""
        writer = adapter_writer(path, architecture, self.alpha)
        for name, (a, b) in self.halves(model).items():
            layer = name.split(".")[2] if ".layers." in name else None
            kind = next(ours for theirs, ours in names.items() if name.endswith(theirs))
            tensor = f"blk.{layer}.{kind}.weight" if layer else f"{kind}.weight"
            writer.add_tensor(f"{tensor}.lora_a", a.numpy(), GGMLType.F32)
            writer.add_tensor(f"{tensor}.lora_b", b.numpy(), GGMLType.F32)
        writer.write()
        return path

    def write_peft(self, folder: Path, model: Any, **settings: Any) -> Path:
        """As PEFT saves it."""
        from safetensors.torch import save_file

        folder.mkdir()
        config = {"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "bias": "none", **settings}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        tensors = {}
        for name, pair in self.halves(model).items():
            for half, tensor in zip("AB", pair, strict=True):
                tensors[f"base_model.model.{name}.lora_{half}.weight"] = tensor.contiguous()
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder


def adapter_writer(path: Path, architecture: str, alpha: float = 8.0, kind: str = "adapter") -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    writer.add("general.type", kind)
    writer.add("adapter.type", "lora")
    writer.add("adapter.lora.alpha", alpha)
    return writer
