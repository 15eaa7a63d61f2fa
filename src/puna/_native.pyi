"""Kernels of Puna, on arrays of numpy."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from puna.ops.array import Array
from puna.ops.sampling import Draw

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

def keep_freed_memory() -> None:
    """Has this process keep up to 256 MiB of freed memory for the next time."""

def usable_cores() -> int:
    """Physical cores this process may use, within its cgroup's quota."""

def cgroup_cores(root: str = "") -> float:
    """
    Cores the cgroup's CPU quota allows, 0 without one; /proc and /sys are looked for under `root`.
    """

def memory_nodes(root: str = "") -> list[list[int]]:
    """
    The processors that this process may use, by node of memory; /sys is looked for under `root`.
    """

def spread_over_nodes(root: str = "") -> int:
    """
    Spreads weights packed from now on, and the pool's threads, over the nodes of memory. Returns how many
    there are; with fewer than two, nothing changes. Raises RuntimeError if the system forbids it.
    """

def interleave(memory: Array) -> None:
    """Takes the pages of `memory` from all nodes in turn, if weights are spread over them."""

def threads() -> int:
    """Threads the kernels use."""

def set_threads(count: int) -> None:
    """Sets how many threads the kernels use; at least 1."""

class Matrix:
    """A matrix [rows, columns] in the layout of the kernels. Immutable."""

    def __init__(self, data: Array, type: int, rows: int, columns: int) -> None:
        """
        Packs the bytes `data` of a GGUF type. Raises ValueError when there are too many or too few.
        """

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def unpack_rows(self, ids: Array) -> NDArray[Any]:
        """
        The rows `ids` (int32) as float32 [count, columns]; raises IndexError for rows that do not exist.
        """

def can_decode(type: int) -> bool:
    """
    Whether matrices of this GGUF type can be packed and embedded without converting them first.
    """

def linear(x: Array, matrices: Sequence[Matrix], biases: Sequence[Array | None]) -> list[NDArray[Any]]:
    """
    x [tokens, columns] @ matrices[i].T + biases[i]: [tokens, rows] for each matrix; a bias may be None.
    """

def linear_heads(x: Array, heads: Sequence[Matrix]) -> NDArray[Any]:
    """
    x [tokens, heads, columns] with a matrix [rows, columns] for each head: [tokens, heads, rows].
    """

def embed(data: Array, type: int, rows: int, columns: int, ids: Array) -> NDArray[Any]:
    """
    The rows `ids` (int32) of a matrix [rows, columns] as the file has it: float32 [tokens, columns].

    Raises IndexError for rows that do not exist.
    """

def experts(
    gate: Matrix | None,
    up: Matrix,
    down: Matrix,
    gate_bias: Array | None | None,
    up_bias: Array | None | None,
    down_bias: Array | None | None,
    count: int,
    activation: int,
    scale_inputs: bool,
    gate_limit: float,
    up_limit: float,
    x: Array,
    chosen: Array,
    weights: Array,
) -> NDArray[Any]:
    """
    Feed-forward networks chosen per token, the matrices of all `count` experts one below the other, gate
    being None where they have none.

    Raises IndexError for experts that do not exist.
    """

def expert_linear(
    matrix: Matrix, bias: Array | None | None, count: int, x: Array, chosen: Array
) -> NDArray[Any]:
    """
    Rows of x through the one matrix each that was chosen for them, of `count` below each other.

    Raises IndexError for experts that do not exist.
    """

def route(
    logits: Array,
    bias: Array | None | None,
    used: int,
    scoring: int,
    normalize: bool,
    scale: float,
    groups: int,
    used_groups: int,
    best_of_group: int,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """
    The int32 numbers of the best experts of each token and their float32 weights.
    """

def route_by_table(
    logits: Array, scoring: int, normalize: bool, scale: float, table: Array, tokens: Array
) -> tuple[NDArray[Any], NDArray[Any]]:
    """
    The experts that a table has for each token, and their float32 weights.

    Raises IndexError for tokens and experts that do not exist.
    """

def attention(
    q: Array,
    keys: Array,
    key_type: int,
    values: Array | None,
    value_type: int,
    value_dim: int,
    cells: Array,
    starts: Array,
    counts: Array,
    scale: float,
    softcap: float,
    sinks: Array | None | None,
    bias: Array | None | None,
    places: Array | None | None,
) -> NDArray[Any]:
    """
    Attention over index lists; values None are the last `value_dim` numbers of each key.

    Raises IndexError for cells that do not exist.
    """

def choose_cells(
    q: Array,
    weights: Array,
    keys: Array,
    key_type: int,
    cells: Array,
    starts: Array,
    counts: Array,
    most: int,
    group: int,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """
    Lists of the cells, or groups of them, with the largest scores, in order: cells, starts and counts.

    Raises IndexError for cells that do not exist.
    """

def choose_blocks(
    q: Array,
    keys: Array,
    key_type: int,
    cells: Array,
    starts: Array,
    counts: Array,
    block: int,
    most: int,
    local: int,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """
    Lists of the blocks of cells that each head scores highest: cell * heads + head, starts and counts.

    Raises IndexError for cells that do not exist.
    """

def pool_groups(
    rows: Array, cells: Array, starts: Array, counts: Array, bias: Array, overlapping: bool
) -> NDArray[Any]:
    """
    The values of each row's group of cells, weighed by their gates.

    Raises IndexError for cells that do not exist.
    """

def join_lists(
    cells: Array, starts: Array, counts: Array, more: Array, begins: Array, lengths: Array, most: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """
    Each row's two lists of cells as one: cells, and each row's start and count.

    Raises IndexError for lists outside of the cells, or longer than `most` together.
    """

def store_rows(target: Array, type: int, cells: Array, rows: Array) -> None:
    """
    Writes rows of floats to cells; raises IndexError for cells that do not exist.
    """

def rms_norm(x: Array, weight: Array, eps: float) -> NDArray[Any]:
    """RMS norm of rows."""

def add_rms_norm(x: Array, residual: Array, weight: Array, eps: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """x + residual, and the RMS norm of its rows."""

def layer_norm(x: Array, weight: Array, bias: Array | None | None, eps: float) -> NDArray[Any]:
    """Layer norm of rows."""

def rope(
    x: Array,
    positions: Array,
    frequencies: Array,
    axes: Array | None | None,
    axis_count: int,
    magnitude: float,
    neox: bool,
    begin: int,
) -> None:
    """
    Rotary embedding from `begin` of each head, in place; axes count where a row has several positions.
    """

def temper(x: Array, positions: Array, scale: float, floor_scale: float, first: int) -> None:
    """Attention temperature tuning of rows, in place, positions counted from `first`."""

def swiglu(gate: Array, up: Array) -> NDArray[Any]:
    """silu(gate) * up."""

def clamped_swiglu(gate: Array, up: Array) -> NDArray[Any]:
    """g * sigmoid(1.702 g) * (u + 1), g being at most 7 and u within -7 and 7."""

def geglu(gate: Array, up: Array) -> NDArray[Any]:
    """gelu(gate) * up, GELU by its approximation with tanh."""

def reglu(gate: Array, up: Array) -> NDArray[Any]:
    """max(gate, 0) * up."""

def squared_relu(x: Array) -> NDArray[Any]:
    """max(x, 0)^2."""

def join(x: Sequence[Array]) -> NDArray[Any]:
    """Arrays side by side along their last axis."""

def split(x: Array, parts: int) -> list[NDArray[Any]]:
    """The columns of x in equal parts, each an array."""

def mix(x: Sequence[Array], mixture: Array) -> list[NDArray[Any]]:
    """Sums of arrays, weighed by row."""

def balance(logits: Array, eps: float, rounds: int) -> NDArray[Any]:
    """Matrices whose rows and columns sum to nearly 1."""

def match_rms(x: Array, like: Array, floor: float) -> NDArray[Any]:
    """Rows as large as others."""

def above(x: Array, deviations: float) -> NDArray[Any]:
    """What values have above most of their row."""

def gelu(x: Array) -> NDArray[Any]:
    """GELU, exactly."""

def softplus(x: Array, scale: Array) -> NDArray[Any]:
    """scale * ln(1 + e^x)."""

def sigmoid(x: Array) -> NDArray[Any]:
    """1 / (1 + e^-x)."""

def signed_root(x: Array, floor: float) -> NDArray[Any]:
    """sign(x) * sqrt(max(|x|, floor))."""

def sigmoid_gate(x: Array, gate: Array) -> NDArray[Any]:
    """x * sigmoid(gate), by value or by row."""

def softcap(x: Array, cap: float) -> NDArray[Any]:
    """cap * tanh(x / cap)."""

def add(a: Array, b: Array) -> NDArray[Any]:
    """a + b."""

def offset(a: Array, number: float) -> NDArray[Any]:
    """a + number."""

def multiply(a: Array, b: Array) -> NDArray[Any]:
    """a * b."""

def scale(a: Array, factor: float) -> NDArray[Any]:
    """a * factor."""

def additions_per_base() -> int:
    """Additions after which a memory becomes a base."""

def additions_size(key_dim: int, value_dim: int) -> int:
    """Floats beside the base of a head's memory."""

def short_conv(
    projected: Array,
    weight: Array,
    bias: Array | None | None,
    states: Array,
    starts: Array,
    sources: Array,
    targets: Array,
    gated: bool,
    activated: bool,
) -> NDArray[Any]:
    """
    Short convolution, gated, through SiLU or plain; raises IndexError for rows and states that do not exist.
    """

def pool_recent(
    values: Array, gates: Array, bias: Array, states: Array, starts: Array, sources: Array, targets: Array
) -> NDArray[Any]:
    """
    Means of the last rows weighed by gates; raises IndexError for rows and states that do not exist.
    """

def linear_attention(
    queries: Array,
    keys: Array,
    values: Array,
    decays: Array,
    betas: Array | None | None,
    skips: Array | None | None,
    probes: Array | None | None,
    removals: Array | None | None,
    bases: Array,
    additions: Array,
    book: Array,
    starts: Array,
    sources: Array,
    targets: Array,
    delta: bool,
    tiled: bool,
) -> NDArray[Any]:
    """
    Linear attention with decay; raises IndexError for rows and states that do not exist.
    """

def selective_scan(
    x: Array,
    steps: Array,
    rates: Array,
    keys: Array,
    queries: Array,
    skips: Array,
    states: Array,
    starts: Array,
    sources: Array,
    targets: Array,
) -> NDArray[Any]:
    """
    The recurrence of Mamba 1; raises IndexError for rows and states that do not exist.
    """

def ngram_rows(
    tokens: Array,
    multipliers: Array,
    sizes: Array,
    offsets: Array,
    boundary: int,
    states: Array,
    starts: Array,
    sources: Array,
    targets: Array,
) -> NDArray[Any]:
    """
    Rows of a table of n-grams; raises IndexError for rows, states and parts that do not exist.
    """

def choose(rows: Sequence[Draw]) -> list[int]:
    """
    The token drawn from each row, which is a `Draw`, or -1 where its logits allow none.
    """

def top_k(logits: Array, k: int) -> NDArray[Any]:
    """The int64 ids of the k largest logits, descending."""

def sum_of_exponentials(logits: Array, largest: float) -> float:
    """Sum of e^(logit - largest)."""

def kernel_set(operation: str, level: str, type: int | None = None) -> str:
    """
    The first of `cpu_levels()` at which a function of this module runs the very code it runs at `level`.

    Operations on matrices may differ with their GGUF type; without one, all types are compared.
    """

class Program:
    """Kernel calls that were noted while they were made."""

    def __init__(self) -> None: ...
    def begin(self, memory: object) -> None:
        """
        Notes the kernel calls of this thread from now on. Raises RuntimeError inside another recording.

        Kernels write to `memory.empty(shape, dtype)`; `memory.uses(array)` is told of what they read.
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
