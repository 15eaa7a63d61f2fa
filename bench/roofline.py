"""The limits of the machine and the cost of a model, in bytes read and multiply-adds.

python bench/roofline.py                 prints the machine's limits
python bench/roofline.py MODEL.gguf      and the speed a model can reach with them
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from puna.gguf import GGMLType, open_gguf

SOURCE = Path(__file__).with_suffix(".cpp")
READ_BYTES = 1 << 30  # larger than the last-level caches of servers
FLOATS = {GGMLType.F32, GGMLType.F16, GGMLType.BF16}

#: The columns that share a scale, in types with blocks of 256.
_GROUPS = {"Q4_K": 32, "Q5_K": 32, "IQ4_XS": 32, "Q6_K": 16, "Q2_K": 16, "Q3_K": 16}
_MINIMA = {"Q4_K", "Q5_K", "Q2_K"}
#: Types whose numbers are stored or multiplied with an excess, which is subtracted with the sums' help.
_EXCESS = {"Q6_K", "Q3_K", "IQ4_XS"}
_BLOCK = 256


def multiplications(kind: str) -> tuple[int, int]:
    """Return how many instructions of AVX-512 VNNI multiply in 256 columns: the products' own, and all.

    Scales, minima and sums of a block take the units that multiply, too.
    """
    products = _BLOCK // 4
    if kind in ("F16", "BF16"):  # as 16-bit integers
        return products, 2 * products
    if kind not in _GROUPS:  # for each 32, a scale of the weights times one of the activations, times the sum
        return products, products + 2 * _BLOCK // 32
    scales = _BLOCK // _GROUPS[kind]
    pairs = scales // 2  # of sums of activations, times their minima or scales
    all_of_them = products + scales + pairs * (kind in _MINIMA) + pairs * (kind in _EXCESS)
    return products, all_of_them + 2 + 2 * (kind in _MINIMA)


@dataclass(frozen=True)
class Machine:
    """Limits of all threads together; 0 if unknown."""

    threads: int
    read: float  # bytes per second
    float_peak: float  # float32 multiply-adds per second
    byte_peak: float  # 8-bit multiply-adds per second, vector instructions
    tile_peak: float  # 8-bit multiply-adds per second, AMX tiles

    def sentence(self) -> str:
        """Format a readable summary."""
        parts = [
            f"reads {self.read / 1e9:.1f} GB/s",
            f"{self.byte_peak / 1e9:.0f} G 8-bit multiply-adds/s",
            f"{self.float_peak / 1e9:.0f} G float32 ones",
        ]
        if self.tile_peak:
            parts.append(f"{self.tile_peak / 1e9:.0f} G 8-bit ones in AMX tiles")
        return f"{self.threads} threads: " + ", ".join(parts)


@dataclass(frozen=True)
class Need:
    """The cost of evaluating tokens, computed from the file."""

    shared_bytes: float  # bytes of the layers' matrices that every token passes through
    expert_bytes: float  # bytes of all experts
    used_experts: float  # the share of experts that a token uses
    layer_products: float  # multiply-adds per token in them
    head_bytes: float  # bytes of the output matrix, needed only for sampled tokens
    head_products: float
    cell_bytes: float  # bytes of the keys and values of one earlier position, in float16
    cell_products: float  # multiply-adds with one earlier position
    state_products: float  # float32 multiplications per token with the states of gated delta networks
    state_bytes: float  # bytes of these states, in float32, that a token reads and writes
    floats: bool  # whether the matrices are of a float type
    layer_multiplications: float  # as `layer_products`, with those of scales, minima and sums
    head_multiplications: float

    def decode_bytes(self, streams: int, depth: float) -> float:
        """Return the bytes read and written in a step of `streams` sequences with `depth` positions each."""
        experts = 1 - (1 - self.used_experts) ** streams  # those used by any token, if each is as likely
        layers = self.shared_bytes + experts * self.expert_bytes
        return layers + self.head_bytes + streams * (depth * self.cell_bytes + self.state_bytes)

    def prompt_products(self, length: int) -> float:
        """Return the multiply-adds of evaluating a prompt of `length` tokens and sampling once."""
        return length * self.layer_products + self.head_products + length * length / 2 * self.cell_products

    def prompt_bound(self, length: int, machine: Machine) -> float:
        """Return the share of the peak that a prompt can reach with AVX-512 VNNI."""
        peak = machine.float_peak if self.floats else machine.byte_peak
        least_s = self.multiplying_s(length, length * length / 2, 1, machine)
        return self.prompt_products(length) / peak / least_s

    def multiplying_s(self, tokens: float, cells: float, outputs: float, machine: Machine) -> float:
        """Return the least seconds with AVX-512 VNNI for `tokens` tokens that see `cells` cells in all, and
        `outputs` of which are sampled.

        Matrices are multiplied at the rate that `multiplications` leaves, attention as 16-bit integers at
        half of it, states in float32. Everything else, such as exponentials and norms, counts as nothing.
        """
        matrices = tokens * self.layer_multiplications + outputs * self.head_multiplications
        attention, states = 2 * cells * self.cell_products, tokens * self.state_products
        return (matrices + attention) / machine.byte_peak + states / machine.float_peak


@cache
def load_library() -> ctypes.CDLL:
    """Compile and load the measuring kernels for this processor. Needs a C++ compiler."""
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "roofline.so"
        command = [compiler, "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([*command, SOURCE, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))
    bandwidths = loaded.read_bandwidth, loaded.copy_bandwidth
    for function in bandwidths:
        function.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    for function in (*bandwidths, loaded.float_peak, loaded.byte_peak, loaded.tile_peak):
        function.restype = ctypes.c_double
    return loaded


def read_bandwidth(threads: int, passes: int = 1) -> float:
    """Return the bytes per second of the fastest of several ways to read a gigabyte, in half a second."""
    return float(load_library().read_bandwidth(threads, READ_BYTES, passes))


def copy_bandwidth(threads: int, passes: int = 1) -> float:
    """Return the bytes per second, read and written, of copying half a gigabyte past the caches."""
    return float(load_library().copy_bandwidth(threads, READ_BYTES, passes))


def measure(threads: int) -> Machine:
    """Measure the machine's limits. Takes a few seconds."""
    library = load_library()
    return Machine(
        threads,
        read=read_bandwidth(threads, 5),
        float_peak=library.float_peak(threads),
        byte_peak=library.byte_peak(threads),
        tile_peak=library.tile_peak(threads),
    )


def need(path: Path) -> Need:
    """Return the cost per token of a model with layers of Llama's attention, or without attention."""
    with open_gguf(path) as file:
        experts = int(file.get("expert_count", 0) or 0)
        used = int(file.get("expert_used_count", 0) or 0) / experts if experts else 1.0
        layers = sum(name.endswith(".attn_k.weight") for name in file.tensors)
        heads = int(file.get("attention.head_count"))
        kv_heads = int(file.get("attention.head_count_kv", heads))
        head_dim = int(file.get("attention.key_length", file.get("embedding_length") // heads))
        shared_bytes = expert_bytes = layer_products = head_bytes = head_products = 0.0
        state_products = state_bytes = layer_multiplications = head_multiplications = 0.0
        kinds = set()
        for name, tensor in file.tensors.items():
            if len(tensor.shape) < 2:
                continue
            values = 1
            for size in tensor.shape:
                values *= size
            stored = tensor.type.nbytes(values)
            own, every = multiplications(tensor.type.name)
            if name.startswith("blk."):
                share = used if "_exps." in name else 1.0
                if "_exps." in name:
                    expert_bytes += stored
                else:
                    shared_bytes += stored
                layer_products += share * values
                layer_multiplications += share * values * every / own
                kinds.add(tensor.type)
            elif name == "output.weight" or "output.weight" not in file.tensors:
                head_bytes, head_products = head_bytes + stored, head_products + values
                head_multiplications += values * every / own
            if name.endswith(".ssm_beta.weight"):
                # Each step multiplies memories [dim, dim] by a key and a query. Each 8th adds up and writes
                # them; the others read and write, on average, half of 7 keys and values.
                memories, dim = tensor.shape[0], int(file.get("ssm.state_size"))
                state_products += memories * dim**2 * (3 + 1 / 8)
                state_bytes += 4 * memories * (dim**2 * (1 + 1 / 8) + 7 * 2 * dim)
    return Need(
        shared_bytes, expert_bytes, used, layer_products, head_bytes, head_products,
        cell_bytes=2.0 * layers * 2 * kv_heads * head_dim,
        cell_products=2.0 * layers * heads * head_dim,
        state_products=state_products,
        state_bytes=state_bytes,
        floats=bool(kinds) and kinds <= FLOATS,
        layer_multiplications=layer_multiplications,
        head_multiplications=head_multiplications,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure the machine's limits, and what a model can reach with them."
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    machine = measure(arguments.threads)
    print(machine.sentence())
    if arguments.model:
        costs = need(arguments.model)
        peak = machine.float_peak if costs.floats else machine.byte_peak
        print(
            f"decoding reads {costs.decode_bytes(1, 0) / 1e6:.0f} MB per token: at most "
            f"{machine.read / costs.decode_bytes(1, 0):.1f} tokens/s\n"
            f"a prompt of 512 tokens takes {costs.prompt_products(512) / 1e9:.0f} G multiply-adds: at most "
            f"{512 * peak / costs.prompt_products(512):.0f} tokens/s"
        )


if __name__ == "__main__":
    main()
