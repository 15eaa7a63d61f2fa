"""Random adapters of tiny models, as files and merged into the original weights."""

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

#: Names of an expert's linears where each expert is a module: in Qwen's models and in Mixtral.
PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}


@dataclass(frozen=True)
class TinyAdapter:
    """Adapter of `modules` in every layer of a transformers model, and of its output if named.

    `experts` names changed linears of experts: "gate", "up" or "down".
    """

    modules: tuple[str, ...]
    rank: int = 4
    alpha: float = 8.0
    seed: int = 0
    experts: tuple[str, ...] = ()

    def halves(self, model: Any) -> Halves:
        """Return (A, B) by the names of the modules they change."""
        torch.default_generator.manual_seed(self.seed)
        found: Halves = {}
        for name, module in model.named_modules():
            if self.modules and name.endswith(self.modules):
                found[name] = self._pair(*module.weight.shape)
        return found

    def expert_halves(self, model: Any) -> dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor]]:
        """Return (A, B) of each expert, by the module that holds the experts and the linear."""
        torch.default_generator.manual_seed(self.seed + 100)
        found = {}
        for name, module in model.named_modules():
            if self.experts and name.endswith(".experts"):
                for part in ("gate", "up", "down"):
                    pairs = [self._pair(*weight.shape) for weight in expert_weights(module, part)]
                    if part in self.experts:
                        a, b = zip(*pairs, strict=True)
                        found[name, part] = torch.stack(a), torch.stack(b)
        return found

    def _pair(self, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.randn(self.rank, inputs) / inputs**0.5
        return a, 0.3 * torch.randn(outputs, self.rank)

    def merged(self, model: Any, scale: float) -> Any:
        """Return a copy of `model` with weights W + scale * alpha / rank * B A."""
        changed = copy.deepcopy(model)
        modules, factor = dict(changed.named_modules()), scale * self.alpha / self.rank
        with torch.no_grad():
            for name, (a, b) in self.halves(model).items():
                modules[name].weight += factor * b @ a
            for (name, part), (a, b) in self.expert_halves(model).items():
                expert_weights(modules[name], part).add_(factor * b @ a)
        return changed

    def write_gguf(self, path: Path, architecture: str, model: Any, names: Mapping[str, str]) -> Path:
        """Write the adapter like llama.cpp's converter; `names` maps ends of module names to tensors."""
        writer = adapter_writer(path, architecture, self.alpha)
        pairs = {}
        for name, pair in self.halves(model).items():
            layer = name.split(".")[2] if ".layers." in name else None
            kind = next(ours for theirs, ours in names.items() if name.endswith(theirs))
            pairs[f"blk.{layer}.{kind}.weight" if layer else f"{kind}.weight"] = pair
        for (name, part), pair in self.expert_halves(model).items():
            pairs[f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight"] = pair
        for tensor, (a, b) in pairs.items():
            writer.add_tensor(f"{tensor}.lora_a", a.numpy(), GGMLType.F32)
            writer.add_tensor(f"{tensor}.lora_b", b.numpy(), GGMLType.F32)
        writer.write()
        return path

    def write_peft(
        self, folder: Path, model: Any, projections: Mapping[str, str] = PROJECTIONS, **settings: Any
    ) -> Path:
        """Write the adapter like PEFT for experts that are modules; `projections` are the linears' names."""
        pairs = dict(self.halves(model))
        for (name, part), (a, b) in self.expert_halves(model).items():
            for expert, pair in enumerate(zip(a, b, strict=True)):
                module = name.replace("mlp", "block_sparse_moe") if projections is MIXTRAL else name
                pairs[f"{module}.{expert}.{projections[part]}"] = pair
        return self._save(folder, pairs, settings)

    def write_fused(self, folder: Path, model: Any, *, swapped: bool = False) -> Path:
        """Write the adapter like PEFT for experts that are parameters, `swapped` as in some releases."""
        modules, pairs, parts = (
            dict(model.named_modules()),
            dict(self.halves(model)),
            self.expert_halves(model),
        )
        for name in {name for name, _ in parts}:
            (a, b), (c, d) = parts[name, "gate"], parts[name, "up"]
            rows = torch.stack(
                [torch.cat([b, 0 * b], 2), torch.cat([0 * d, d], 2)], 1
            )  # of each expert: [2, out, 2 rank]
            if not getattr(modules[name], "is_concatenated", True):
                rows = rows.transpose(1, 2)
            gate_up = torch.cat([a, c], 1), rows.flatten(1, 2)
            for module, (narrow, wide) in ((f"{name}.base_layer", gate_up), (name, parts[name, "down"])):
                if swapped:
                    narrow, wide = wide.mT, narrow.mT
                pairs[module] = narrow.flatten(0, 1), wide.permute(1, 2, 0).flatten(1, 2)
        return self._save(folder, pairs, {"alpha_pattern": {".*\\.gate_up_proj": 2 * self.alpha}})

    def _save(self, folder: Path, pairs: Halves, settings: Mapping[str, Any]) -> Path:
        from safetensors.torch import save_file

        folder.mkdir()
        config = {"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "bias": "none", **settings}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        tensors = {}
        for name, pair in pairs.items():
            for half, tensor in zip("AB", pair, strict=True):
                tensors[f"base_model.model.{name}.lora_{half}.weight"] = tensor.contiguous()
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder


def expert_weights(module: Any, part: str) -> torch.Tensor:
    """Return a view [experts, out, in] of the gate, up or down weights of transformers' `module`."""
    turned = getattr(module, "is_transposed", False)
    if part == "down":
        down = module.down_proj.data
        return down.mT if turned else down
    both = module.gate_up_proj.data.mT if turned else module.gate_up_proj.data
    number = ("gate", "up").index(part)
    if getattr(module, "is_concatenated", True):
        return both.chunk(2, dim=1)[number]
    return both[:, number::2]


def adapter_writer(path: Path, architecture: str, alpha: float = 8.0, kind: str = "adapter") -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    writer.add("general.type", kind)
    writer.add("adapter.type", "lora")
    writer.add("adapter.lora.alpha", alpha)
    return writer
