"""
Kernels of Puna. Arrays are passed as addresses and sizes; nothing here knows torch.
"""

from collections.abc import Sequence

def features() -> list[str]:
    """Instruction sets of this CPU that the kernels know."""

def cpu_level() -> str:
    """The kernels in use, one of `cpu_levels()`."""

def cpu_levels() -> list[str]:
    """
    Sets of kernels this CPU can run, the best one last: 'portable', 'avx2', ...
    """

def set_cpu_level(name: str) -> None:
    """
    Use other kernels for matrices packed from now on (for tests and measurements).
    """

def kernel_set(operation: str, level: str, type: int | None = None) -> str:
    """
    The first of `cpu_levels()` at which a function of this module runs the very code it runs at `level`.

    `linear` and `experts` may differ with the GGUF type of the matrices; without one, all types are compared.
    """

def keep_freed_memory() -> None:
    """Has this process keep up to 256 MiB of freed memory for the next time."""

def usable_cores() -> int:
    """Physical cores this process may use, within its cgroup's quota."""

def cgroup_cores(root: str = "") -> float:
    """
    Cores the cgroup's CPU quota allows, 0 without one; /proc and /sys are looked for under `root`.
    """

def threads() -> int:
    """Threads the kernels use."""

def set_threads(count: int) -> None:
    """Sets how many threads the kernels use; at least 1."""

class Matrix:
    """A matrix [rows, columns] in the layout of the kernels. Immutable."""

    def __init__(self, data: int, bytes: int, type: int, rows: int, columns: int) -> None:
        """
        Packs `bytes` bytes of a GGUF type at the address `data`. Raises ValueError on a wrong size.
        """

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def unpack_rows(self, ids: int, count: int, out: int) -> None:
        """out [count, columns] float32 = the rows `ids` (int32, in range)."""

def can_decode(type: int) -> bool:
    """
    Whether matrices of this GGUF type can be packed and embedded without converting them first.
    """

def linear(
    matrices: Sequence[Matrix],
    biases: Sequence[int],
    x: int,
    tokens: int,
    columns: int,
    outputs: Sequence[int],
) -> None:
    """
    outputs[i] [tokens, rows] = x [tokens, columns] @ matrices[i].T + biases[i].

    All are addresses of float32 values; 0 stands for no bias.
    """

def embed(data: int, type: int, rows: int, columns: int, ids: int, tokens: int, out: int) -> None:
    """
    out [tokens, columns] float32 = the rows `ids` (int32) of a matrix [rows, columns] as the file has it.

    Raises IndexError for rows there are not.
    """

def experts(
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    gate_bias: int,
    up_bias: int,
    down_bias: int,
    count: int,
    activation: int,
    scale_inputs: bool,
    x: int,
    chosen: int,
    shares: int,
    tokens: int,
    per_token: int,
    out: int,
) -> None:
    """
    Feed-forward networks chosen per token, the matrices of all `count` experts one below the other.

    0 stands for no bias. Raises IndexError for experts that do not exist.
    """

def route(
    logits: int,
    bias: int,
    tokens: int,
    count: int,
    per_token: int,
    sigmoid: bool,
    normalize: bool,
    scale: float,
    chosen: int,
    shares: int,
) -> None:
    """
    Writes the int32 numbers of the best experts of each token and their float32 shares.
    """

def attention(
    q: int,
    keys: int,
    key_type: int,
    values: int,
    value_type: int,
    cells: int,
    starts: int,
    counts: int,
    sinks: int,
    out: int,
    rows: int,
    heads: int,
    kv_heads: int,
    dim: int,
    value_dim: int,
    capacity: int,
    listed: int,
    scale: float,
    softcap: float,
) -> None:
    """
    Attention over index lists; raises IndexError for cells that do not exist.
    """

def rms_norm(x: int, residual: int, weight: int, eps: float, rows: int, width: int, sum: int, y: int) -> None:
    """RMS norm of rows, of x + residual when residual is not 0."""

def layer_norm(x: int, weight: int, bias: int, eps: float, rows: int, width: int, y: int) -> None:
    """Layer norm of rows; with bias 0 nothing is added."""

def rope(
    x: int,
    positions: int,
    axes: int,
    frequencies: int,
    magnitude: float,
    neox: bool,
    rows: int,
    heads: int,
    dim: int,
    pairs: int,
    axis_count: int,
) -> None:
    """Rotary embedding, in place; with axes 0 a row has one position."""

def swiglu(gate: int, up: int, count: int, y: int) -> None:
    """silu(gate) * up."""

def geglu(gate: int, up: int, count: int, y: int) -> None:
    """gelu(gate) * up, GELU by its approximation with tanh."""

def gelu(x: int, count: int, y: int) -> None:
    """GELU, exactly."""

def softcap(x: int, cap: float, count: int, y: int) -> None:
    """cap * tanh(x / cap)."""

def temper(x: int, positions: int, scale: float, floor_scale: float, rows: int, width: int) -> None:
    """Attention temperature tuning of rows, in place."""

def add(a: int, b: int, count: int, y: int) -> None:
    """a + b."""

def multiply(a: int, b: int, count: int, y: int) -> None:
    """a * b."""

def scale(a: int, factor: float, count: int, y: int) -> None:
    """a * factor."""

def short_conv(
    projected: int,
    weights: int,
    bias: int,
    states: int,
    starts: int,
    sources: int,
    targets: int,
    y: int,
    rows: int,
    channels: int,
    taps: int,
    slots: int,
) -> None:
    """
    Gated short convolution; raises IndexError for rows and states that do not exist.
    """

def store_rows(target: int, type: int, cells: int, source: int, rows: int, width: int, capacity: int) -> None:
    """
    Writes rows of floats to cells; raises IndexError for cells that do not exist.
    """

def choose(
    logits: int,
    count: int,
    temperature: float,
    top_k: int,
    typical_p: float,
    top_p: float,
    min_p: float,
    uniform: float,
) -> int:
    """
    The token drawn with the random number `uniform`, or -1 when the logits allow none.
    """

def top_k(logits: int, count: int, k: int, ids: int) -> None:
    """Writes the int64 ids of the k largest logits, descending."""

def sum_of_exponentials(logits: int, count: int, largest: float) -> float:
    """Sum of e^(logit - largest)."""

class Program:
    """Kernel calls that were noted while they were made."""

    def __init__(self) -> None: ...
    def begin(self) -> None:
        """
        Notes the kernel calls of this thread from now on. Raises RuntimeError inside another recording.
        """

    def end(self) -> None:
        """Stops noting."""

    def run(self) -> None:
        """
        Makes all calls again. The addresses they were given must still be valid.
        """

    def run_timed(self) -> list[float]:
        """As run(); returns the seconds each call took."""

    @property
    def names(self) -> list[str]:
        """The functions called, in order."""
