"""MobileNet V5 in PyTorch, after timm's definition of its blocks and with timm's names of weights.

timm itself needs torchvision, which is not installed for the tests; where both are installed,
`tests/vision/test_mobilenet.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

#: Stages of blocks, as timm writes them: edge residuals (er), inverted residuals (uir) and attention (mqa).
#: a and k: kernels; s: step of the block; e: factor of inner channels; c: channels; h, d: heads and their
#: size; v: step of keys.
STAGES = [
    ["er_r1_k3_s2_e4_c16", "er_r1_k3_s1_e4_c16"],
    ["uir_r1_a3_k5_s2_e6_c24", "uir_r1_a5_k0_s1_e4_c24"],
    [
        "uir_r1_a5_k5_s2_e6_c32", "uir_r1_a0_k0_s1_e1_c32", "mqa_r1_k3_h3_v2_s1_d16_c32",
        "uir_r1_a0_k0_s1_e2_c32",
    ],
    ["uir_r1_a5_k5_s2_e6_c40", "mqa_r1_k3_h2_s1_d24_c40", "uir_r1_a0_k0_s1_e2_c40"],
]  # fmt: skip
STEM, OUT = 16, 48


class Convolution(nn.Conv2d):
    """Convolution with SAME padding, the odd pixel at the end (`Conv2dSame`)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sides = []
        for size, kernel, step in zip(x.shape[2:], self.kernel_size, self.stride, strict=True):
            outside = max((-(-size // step) - 1) * step + kernel - size, 0)
            sides.append((outside // 2, outside - outside // 2))
        return super().forward(functional.pad(x, (*sides[1], *sides[0])))


def depthwise(channels: int, kernel: int, step: int) -> Convolution:
    return Convolution(channels, channels, kernel, step, groups=channels, bias=False)


def pointwise(channels: int, out: int) -> Convolution:
    return Convolution(channels, out, 1, bias=False)


class Norm(nn.Module):
    """`RmsNorm2d`, optionally with GELU (`RmsNormAct2d`)."""

    def __init__(self, channels: int, *, act: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = x.pow(2).mean(dim=1, keepdim=True)
        x = x * torch.rsqrt(square + 1e-6) * self.weight[:, None, None]
        return functional.gelu(x, approximate="tanh") if self.act else x


class ConvNorm(nn.Module):
    def __init__(self, conv: nn.Module, channels: int, *, act: bool) -> None:
        super().__init__()
        self.conv = conv
        self.bn = Norm(channels, act=act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(self.conv(x))


class Scale(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gamma[:, None, None]


class EdgeResidual(nn.Module):
    def __init__(self, channels: int, out: int, e: int, k: int, s: int) -> None:
        super().__init__()
        self.conv_exp = Convolution(channels, channels * e, k, s, bias=False)
        self.bn1 = Norm(channels * e, act=True)
        self.conv_pwl = pointwise(channels * e, out)
        self.bn2 = Norm(out)
        self.skip = s == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.bn2(self.conv_pwl(self.bn1(self.conv_exp(x))))
        return found + x if self.skip else found


class InvertedResidual(nn.Module):
    def __init__(
        self, channels: int, out: int, e: int, a: int, k: int, s: int, *, last: bool = False
    ) -> None:
        super().__init__()
        inner = channels * e
        self.dw_start = ConvNorm(depthwise(channels, a, 1), channels, act=False) if a else nn.Identity()
        self.pw_exp = ConvNorm(pointwise(channels, inner), inner, act=True)
        self.dw_mid = ConvNorm(depthwise(inner, k, s), inner, act=True) if k else nn.Identity()
        self.pw_proj = ConvNorm(pointwise(inner, out), out, act=False)
        self.layer_scale = nn.Identity() if last else Scale(out)
        self.skip = s == 1 and channels == out and not last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.layer_scale(self.pw_proj(self.dw_mid(self.pw_exp(self.dw_start(x)))))
        return found + x if self.skip else found


class MultiQuery(nn.Module):
    def __init__(self, channels: int, heads: int, size: int, step: int, kernel: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.query = nn.Sequential()
        self.query.add_module("proj", pointwise(channels, heads * size))
        self.key, self.value = nn.Sequential(), nn.Sequential()
        for part in (self.key, self.value):
            if step > 1:
                part.add_module("down_conv", depthwise(channels, kernel, step))
                part.add_module("norm", Norm(channels))
            part.add_module("proj", pointwise(channels, size))
        self.output = nn.Sequential()
        self.output.add_module("proj", pointwise(heads * size, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, _, height, width = x.shape
        query = self.query(x).reshape(count, self.heads, self.size, -1)
        key, value = (part(x).flatten(2) for part in (self.key, self.value))
        scores = torch.einsum("bhdq,bdk->bhqk", query, key) * self.size**-0.5
        found = torch.einsum("bhqk,bdk->bhdq", scores.softmax(dim=-1), value)
        return self.output(found.reshape(count, -1, height, width))


class Attention(nn.Module):
    def __init__(self, channels: int, heads: int, size: int, step: int, kernel: int) -> None:
        super().__init__()
        self.norm = Norm(channels)
        self.attn = MultiQuery(channels, heads, size, step, kernel)
        self.layer_scale = Scale(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer_scale(self.attn(self.norm(x)))


def block(written: str, channels: int) -> nn.Module:
    kind, *parts = written.split("_")
    o = {part[0]: int(part[1:]) for part in parts}
    match kind:
        case "er":
            return EdgeResidual(channels, o["c"], o["e"], o["k"], o["s"])
        case "uir":
            return InvertedResidual(channels, o["c"], o["e"], o["a"], o["k"], o["s"])
    return Attention(channels, o["h"], o["d"], o.get("v", 1), o["k"])


class Fusion(nn.Module):
    def __init__(self, channels: int, out: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.ffn = InvertedResidual(channels, out, 2, 0, 0, 1, last=True)
        self.norm = Norm(out)

    def forward(self, large: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
        found = self.ffn(torch.cat([large, functional.interpolate(small, size=large.shape[2:])], dim=1))
        return self.norm(functional.avg_pool2d(found, found.shape[-1] // self.side))


class MobileNetV5(nn.Module):
    """Network from pictures [n, 3, height, width] to `out` channels of `side` x `side` places."""

    def __init__(self, side: int, out: int = OUT, stages: Sequence[Sequence[str]] = STAGES) -> None:
        super().__init__()
        self.conv_stem = ConvNorm(Convolution(3, STEM, 3, 2), STEM, act=True)
        self.blocks, channels = nn.Sequential(), STEM
        ends = []
        for stage in stages:
            made = nn.Sequential()
            for written in stage:
                made.append(block(written, channels))
                channels = int(written.rpartition("_c")[2])
            self.blocks.append(made)
            ends.append(channels)
        self.msfa = Fusion(sum(ends[-2:]), out, side)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, found = self.conv_stem(x), []
        for stage in self.blocks:
            x = stage(x)
            found.append(x)
        return self.msfa(*found[-2:])


class Wrapped(nn.Module):
    """Wrapper with the interface of transformers' `TimmWrapperModel`."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.timm_model = MobileNetV5(side)

    def forward(self, pixel_values: torch.Tensor, **_: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return BaseModelOutputWithPooling(last_hidden_state=self.timm_model(pixel_values))
