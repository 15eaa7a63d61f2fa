"""The interface of a backend, on which models are computed.

Every operation is declared here, once; `puna.ops.reference` is the specification in numpy, `puna.ops.cpu` has
C++ kernels. Nothing outside a backend asks which one it is, takes an address, or assumes memory that this
process can read: arrays are used as `puna.ops.Array` says.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from puna import machine
from puna.errors import UnavailableError
from puna.gguf import GGMLType
from puna.ops import sampling

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from puna.ops.array import Array, IndexBuffer, NumberBuffer
    from puna.ops.collectives import Collectives
    from puna.ops.experts import ExpertNetworks, ExpertWeights, Routing
    from puna.ops.low_rank import LowRankWeights
    from puna.ops.recording import Recorder
    from puna.ops.rope import Rope
    from puna.ops.storage import MemoryShape, Storage
    from puna.ops.weight import Weight


#: Attention computes a row to the same bits if its list begins at the same place modulo this.
LIST_ALIGNMENT: Final = 512


def list_width(most: int) -> int:
    """Return the distance between lists of at most `most` entries, each beginning at an aligned place."""
    return -(-most // LIST_ALIGNMENT) * LIST_ALIGNMENT


class Backend(ABC):
    """The operations that models are built from, on one device.

    Arrays are contiguous float32, indices int32, unless stated. `T` is the number of tokens in the batch. A
    token's row does not depend on the rest of the batch, nor on the number of threads. Operations raise
    `ValueError` for wrong shapes or dtypes and `IndexError` for indices out of range; the reference leaves
    that to numpy.
    """

    name: ClassVar[str]
    device: ClassVar[str] = "CPU"  # where weights and caches are stored, for the table of a model's memory
    batch_scale: ClassVar[int] = 1  # a pass has this many times the rows of one on the processor
    compiles: bool = False  # an operation's first call compiles its kernel, which may take seconds
    #: The least rows for which `feed_forward` is faster than the operations that it consists of.
    feed_forward_from: ClassVar[int] = sys.maxsize

    @property
    def kernels(self) -> str:
        """A short name of what computes, for people: the kernels' instruction set, for instance."""
        return self.name

    @property
    def host(self) -> Backend:
        """The backend that computes with weights that stay on the host: this one, on a processor."""
        return self

    # --- arrays ----------------------------------------------------------------------------------------

    @abstractmethod
    def array(self, values: NDArray[Any]) -> Array:
        """Return the host's values as an array. The host must not change them afterwards."""

    @abstractmethod
    def numpy(self, array: Array) -> NDArray[Any]:
        """Return an array's values on the host, read-only, valid until the array is written."""

    @abstractmethod
    def index_buffer(self, *shape: int) -> IndexBuffer:
        """Return int32 indices of `shape`, initially zero, that the host writes and operations read."""

    @abstractmethod
    def number_buffer(self, *shape: int) -> NumberBuffer:
        """Return float32 numbers of `shape`, initially zero, that the host writes and operations read."""

    @abstractmethod
    def concatenate(self, arrays: Sequence[Array]) -> Array:
        """Concatenate arrays [n, ...] along the first axis."""

    @abstractmethod
    def join(self, arrays: Sequence[Array]) -> Array:
        """Concatenate arrays [..., n], equal in the other sizes, along the last axis."""

    @abstractmethod
    def pad(self, x: Array, width: int, value: float) -> Array:
        """Extend the rows of `x` [T, n] to length `width` by `value`."""

    @abstractmethod
    def split(self, x: Array, parts: int) -> list[Array]:
        """Split the columns of `x` [T, parts * n] into consecutive parts: arrays [T, n]."""

    # --- weights and storage ---------------------------------------------------------------------------

    @abstractmethod
    def pack(self, weight: Weight) -> None:
        """Convert a matrix to the layout that operations read, and release the file's bytes.

        A weight that stays on the host is packed there, and every operation takes it like others.
        Does nothing the second time. Embeddings read single rows and are better left unpacked.
        """

    @abstractmethod
    def packed_bytes(self, type: GGMLType, shape: tuple[int, ...]) -> int:
        """Return the bytes `pack` will use for a matrix of `shape` [out, in] of `type`."""

    def pack_low_rank(self, adapters: LowRankWeights) -> None:
        """Convert adapters' matrices to the layout that `add_low_rank` reads, if they are not in it yet."""
        for part in adapters.parts:
            self.pack(part.down)
            self.pack(part.up)

    @abstractmethod
    def storage(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> Storage:
        """Return storage for rows of numbers [rows, *row_shape] that persist between passes, initially zero.

        Raises `NotSupportedError` if the last size does not fill the blocks of `kind`.
        """

    def memories(self, rows: int, shape: MemoryShape) -> Storage:
        """Return storage for the memories of linear attention, initially zero, in a form of the backend's."""
        return self.storage(GGMLType.F32, rows, shape)

    # --- operations ------------------------------------------------------------------------------------

    @abstractmethod
    def embedding(self, tokens: Array, weight: Weight) -> Array:
        """Return the rows `tokens` [T] of `weight` [vocabulary, width], dequantised: [T, width]."""

    @abstractmethod
    def linear(self, x: Array, weight: Weight, bias: Array | None = None) -> Array:
        """Return `x @ weight.T + bias`: x [T, in], weight [out, in], bias [out], result [T, out]."""

    @abstractmethod
    def linear_many(
        self, x: Array, weights: Sequence[Weight], biases: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Apply `linear` with several weights to the same `x`, preparing `x` once."""

    def add_low_rank(self, y: Array, x: Array, adapters: LowRankWeights, scales: Array) -> Array:
        """Return `y` plus what adapters add for `x`: x [T, in], y and result [T, out].

        `scales` [T, adapters] says how much of each adapter's `b a x` a row takes; a row takes nothing of
        those with 0. The result may be in the memory of `y`.
        """
        table = self.numpy(scales)
        for part in adapters.parts:
            column = table[:, part.adapter]
            if column.any():
                alike = bool((column == column[0]).all())
                scale = float(column[0]) if alike else self.array(column[:, None].copy())
                y = y + self.linear(self.linear(x, part.down) * scale, part.up)
        return y

    @abstractmethod
    def linear_heads(self, x: Array, weights: Sequence[Weight]) -> Array:
        """Apply `linear` with a separate matrix for each head: x [T, heads, in], result [T, heads, out].

        `weights` has one matrix [out, in] per head.
        """

    @abstractmethod
    def route(self, logits: Array, routing: Routing, bias: Array | None = None) -> tuple[Array, Array]:
        """Choose the experts of each token, and their weights.

        The scores are the softmax of `logits` [T, experts], their sigmoids, or `sqrt(ln(1 + e^logit))`. The
        `routing.used` best experts are those with the largest logits or, given a `bias` [experts], the
        largest score + bias; the lower number wins a tie. Returns `chosen` int32 and `weights` float32, both
        [T, used] and best first: a weight is the score, divided by the sum of the chosen ones if
        `routing.normalize`, times `routing.scale`. (So the softmax over the chosen ones alone is the
        normalised softmax over all.)

        With several `routing.groups`, experts are chosen from the `routing.used_groups` best ones only: those
        whose `routing.best_of_group` best scores, including `bias`, have the largest sum. That number is two
        since DeepSeek V3 (DeepSeek-AI, arXiv:2412.19437, section 2.1.2), and was one before
        (arXiv:2405.04434).
        """

    @abstractmethod
    def route_by_table(
        self, logits: Array, routing: Routing, table: Array, tokens: Array
    ) -> tuple[Array, Array]:
        """Choose the experts that `table` int32 [vocabulary, used] has for each of `tokens` [T].

        Returns what `route` does, in the order of the table: the hash layers of DeepSeek V4 (DeepSeek-AI,
        "DeepSeek V4", 2026, section 2.1).
        """

    @abstractmethod
    def experts(self, x: Array, chosen: Array, weights: Array, layer: ExpertNetworks) -> Array:
        """Apply each token's chosen experts: x [T, in], chosen and weights [T, used], result [T, out].

        The result is the sum over a token's experts of `weight * down(activation(gate(x), up(x)))`, or of
        `down(activation(gate(weight * x), up(weight * x)))` if `layer.scale_inputs`. The activation is the
        operation of that name: `swiglu`, `clamped_swiglu`, `geglu` or `reglu`, or without gates `gelu` or
        `squared_relu` of `up(x)`. Unless `layer.up_limit` is 0, it is given `min(gate, gate_limit)`, and ups
        clamped to [-up_limit, up_limit].
        """

    def feed_forward(self, x: Array, layer: ExpertNetworks) -> Array:
        """Apply the only network of a layer to every token: x [T, in], result [T, out].

        It has the bits of `linear_many`, the activation and `linear`.
        """
        chosen = self.array(np.zeros((len(x), 1), np.int32))
        return self.experts(x, chosen, self.array(np.ones((len(x), 1), np.float32)), layer)

    @abstractmethod
    def expert_linear(
        self, x: Array, chosen: Array, weights: ExpertWeights, bias: Array | None = None
    ) -> Array:
        """Apply `linear` with one expert's matrix to each row: x [T, in], chosen [T], result [T, out].

        The weights are [experts, out, in], and the bias is [experts, out].
        """

    @abstractmethod
    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """Return `x / sqrt(mean(x²) + eps) * weight` over the last axis: x [..., d], weight [d].

        If x is [..., groups, d], weight may be [groups, d].
        """

    @abstractmethod
    def add_rms_norm(self, x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array]:
        """Return `total = x + residual` and `rms_norm(total)`; all are [..., d]."""

    @abstractmethod
    def layer_norm(self, x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
        """Return `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last axis.

        x [..., d], weight and bias [d], or both [groups, d] as in `rms_norm`. The variance is the mean
        squared deviation: divided by d, not by d - 1.
        """

    @abstractmethod
    def rope_(self, x: Array, positions: Array, rope: Rope) -> None:
        """Rotate the heads of `x` [T, heads, head_dim] by their `positions` (may be negative), in place.

        `positions` are [T], or [T, rope.axis_count] if pairs rotate by positions on several axes.
        """

    @abstractmethod
    def swiglu(self, gate: Array, up: Array) -> Array:
        """Return `silu(gate) * up`, both [T, n]."""

    @abstractmethod
    def clamped_swiglu(self, gate: Array, up: Array) -> Array:
        """Return `g * sigmoid(1.702 g) * (u + 1)` as in gpt-oss.

        g is min(gate, 7), and u is up clamped to [-7, 7]; both inputs are [T, n].
        """

    @abstractmethod
    def geglu(self, gate: Array, up: Array) -> Array:
        """Return `gelu(gate) * up`, both [T, n].

        GELU is `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`.
        """

    @abstractmethod
    def reglu(self, gate: Array, up: Array) -> Array:
        """Return `max(gate, 0) * up`, both [T, n]."""

    @abstractmethod
    def gelu(self, x: Array) -> Array:
        """Return `x / 2 * (1 + erf(x / sqrt(2)))` of x [T, n]: exact GELU, not its tanh approximation."""

    @abstractmethod
    def squared_relu(self, x: Array) -> Array:
        """Return `max(x, 0)²` (So et al., arXiv:2109.08668). Float32, any shape."""

    @abstractmethod
    def above(self, x: Array, deviations: float) -> Array:
        """Return `max(x - threshold, 0)` of x [T, n], by a threshold for each row.

        It is the row's mean + `deviations` * standard deviation. For normally distributed values, this keeps
        a fixed share: the sparse activations of Gemma 3n.
        """

    @abstractmethod
    def mix(self, x: Sequence[Array], mixture: Array) -> list[Array]:
        """Return weighted sums of `x`, n arrays [T, d], with separate weights for each row: m arrays [T, d].

        `mixture` is [T, m * n]; its entry `i * n + j` is the weight of `x[j]` in the i-th result.
        """

    @abstractmethod
    def balance(self, logits: Array, eps: float, rounds: int) -> Array:
        """Return matrices [T, n * n] whose rows and columns sum to nearly 1, by the Sinkhorn-Knopp algorithm.

        Entry `i * n + j` belongs to source j and result i, as in `mix`. `logits` [T, n * n] become the
        softmax over the results of each source, plus `eps`. Then they are divided by `eps` + their sum over
        the sources of each result and, `rounds - 1` times, by `eps` + their sum over the results of each
        source, and again by that over the sources of each result. Hyper-connections mix streams by these
        (Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2026).
        """

    @abstractmethod
    def match_rms(self, x: Array, like: Array, floor: float) -> Array:
        """Return `x * rms(like) / rms(x)` by rows of x and like [T, n]; mean(x²) is at least `floor`."""

    @abstractmethod
    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        """Return `x * sigmoid(gate)`: x [T, n], gate [T, n], or [T, 1] for one gate per row."""

    @abstractmethod
    def softcap(self, x: Array, cap: float) -> Array:
        """Return `cap * tanh(x / cap)` of x [T, n]: nearly x for small values, never beyond `cap` (not 0)."""

    @abstractmethod
    def temper_(self, x: Array, positions: Array, scale: float, floor_scale: float, first: int) -> None:
        """Multiply rows of `x` [T, ...] in place, to sharpen attention at late `positions` [T].

        The factor is `1 + scale * ln(1 + floor((position + first) / floor_scale))`. Queries at late positions
        have more keys to choose from: the temperature tuning of Llama 4, after Nakanishi, arXiv:2501.19399.
        """

    @abstractmethod
    def softplus(self, x: Array, scale: Array) -> Array:
        """Return `scale * ln(1 + e^x)` of x [T, n], scale [n]: the steps and decays of recurrent layers."""

    @abstractmethod
    def sigmoid(self, x: Array) -> Array:
        """Return `1 / (1 + e^-x)`. Float32, any shape."""

    @abstractmethod
    def signed_root(self, x: Array, floor: float) -> Array:
        """Return `sign(x) * sqrt(max(|x|, floor))`, which is 0 for 0. Float32, any shape."""

    @abstractmethod
    def short_conv(
        self,
        projected: Array,
        weight: Array,
        bias: Array | None,
        states: Storage,
        starts: Array,
        sources: Array,
        targets: Array,
        *,
        gated: bool = True,
        activated: bool = True,
    ) -> Array:
        """Convolve each channel over the rows of each sequence, with few taps: [T, channels].

        If `gated`, `projected` [T, 3 * channels] holds b, c and x of each row, and row t is `c * (bias + sum
        of weight * recent)`, `recent` being the products `b * x` of that row and the `taps - 1` before it,
        the latest last: weight [taps, channels], bias [channels]. Otherwise `projected` [T, channels] is x,
        used instead of the products, and row t is `silu(bias + sum)`, or the sum itself unless `activated`.

        The sequence of row t begins at row `starts[t]`. The values before it are the state `sources[t]` of
        `states` [slots, taps - 1, channels], stored as F32 and initially zero. State `targets[t]` receives
        the values before the row after t; -1 stores none. States that are written are distinct, and none of
        them is read. starts, sources and targets are [T]. A row's result is the same bits however its
        sequence is split into batches.
        """

    @abstractmethod
    def pool_recent(
        self,
        values: Array,
        gates: Array,
        bias: Array,
        states: Storage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        """Return means over the last rows of each sequence, weighed by gates: [T, channels].

        In each channel, row t is the sum of `softmax(gates + bias) * values` over that row and the `taps - 1`
        before it, the softmax being over these rows: values and gates [T, channels], bias [taps, channels],
        the latest row's last. The indexers of GLM 5.3 Flash make one key of a group of positions like this.

        `states` [slots, taps - 1, 2 * channels], stored as F32 and initially zero, hold the values and then
        the gates of rows before the batch; starts, sources and targets are as for `short_conv`. A row's
        result is the same bits however its sequence is split into batches.
        """

    @abstractmethod
    def linear_attention(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        decays: Array,
        betas: Array | None,
        skips: Array | None,
        states: Storage,
        starts: Array,
        sources: Array,
        targets: Array,
        *,
        delta: bool = False,
        removal: tuple[Array, Array] | None = None,
        tiled: bool = False,
    ) -> Array:
        """Compute attention with one matrix per head as its memory: [T, heads, value_dim].

        queries and keys [T, key_heads, key_dim]; values [T, heads, value_dim]; decays [T, heads], or one for
        each entry of a key [T, heads, key_dim], at most 0; betas [T, heads], 1 if None; skips [heads]. With a
        head's memory M [key_dim, value_dim] and q, k, v, d, beta of row t: `M = exp(d) * M`, then `M = M +
        outer(k, beta * v)`, or `outer(k, beta * (v - k @ M))` by the `delta` rule, and row t is `q @ M`, plus
        `skip * v`. Gated delta networks (Yang et al., arXiv:2412.06464) are this, and Mamba 2 (Dao and Gu,
        arXiv:2405.21060), whose steps are the betas. Head h has the key and query of key head `h * key_heads
        // heads`, or of `h % key_heads` if `tiled`.

        The `removal`, which excludes the delta rule, is p and r, shaped like keys: M begins as `exp(d) * M -
        outer(r, p @ M)`, so that what p finds before the decay is removed at r. This is the generalised delta
        rule of RWKV 7 (Peng et al., arXiv:2503.14456).

        `states` are `memories` [slots, heads, key_dim, value_dim]; starts, sources and targets are as for
        `short_conv`. A row's result is the same bits however its sequence is split into batches.
        """

    @abstractmethod
    def selective_scan(
        self,
        x: Array,
        steps: Array,
        rates: Array,
        keys: Array,
        queries: Array,
        skips: Array,
        states: Storage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        """Compute the recurrence of Mamba 1 (Gu and Dao, arXiv:2312.00752): [T, channels].

        x and steps [T, channels]; rates [entries, channels], below 0; keys and queries [T, entries]; skips
        [channels]. With the state S [entries, channels] and x, k, q and the steps s of row t: `S = exp(s *
        rates) * S + outer(k, s * x)`, and row t is `q @ S + skips * x`. `states` [slots, entries, channels],
        stored as F32; starts, sources and targets are as for `short_conv`. A row's result is the same bits
        however its sequence is split into batches.
        """

    @abstractmethod
    def ngram_rows(
        self,
        tokens: Array,
        multipliers: Array,
        sizes: Array,
        offsets: Array,
        boundary: int,
        states: Storage,
        starts: Array,
        sources: Array,
        targets: Array,
    ) -> Array:
        """Return the rows of a table that each token and those before it are hashed to: int32 [T, heads].

        An n-gram is the token and the n - 1 before it in its sequence, n being 2 to `longest`. Its hash is
        the exclusive or of `token * multipliers[0]`, `previous token * multipliers[1]`, ...: tokens int32
        [T], multipliers int64 [longest]. A row's entry h is `offsets[h] + hash % sizes[h]`, both int64
        [heads]; the first `heads / (longest - 1)` heads are of bigrams, as many of trigrams follow, and so
        on. A token before which there is no other, or only beyond a `boundary`, has that token there
        instead. Products must not exceed int64, nor tokens 2^24.

        `states` [slots, longest - 1], stored as F32 and initially zero, are the tokens before a row, the
        latest last, minus `boundary`; starts, sources and targets are as for `short_conv`.
        """

    @abstractmethod
    def store_rows(self, target: Storage, cells: Array, rows: Array) -> None:
        """Set `target[cells] = rows`, rounded or quantised: rows [T, heads, dim], cells [T] distinct."""

    @abstractmethod
    def attention(
        self,
        q: Array,
        keys: Storage,
        values: Storage | int,
        cells: Array,
        starts: Array,
        counts: Array,
        scale: float,
        softcap: float = 0.0,
        sinks: Array | None = None,
        bias: Array | None = None,
        places: Array | None = None,
    ) -> Array:
        """Compute attention in which every row has its own list of cells.

        Row t of `q` [T, heads, head_dim] attends to `cells[starts[t] : starts[t] + counts[t]]` of `keys`
        [capacity, kv_heads, head_dim] and `values` [capacity, kv_heads, value_dim], each stored as any of
        `KV_TYPES`; if `values` is a number, that many numbers at the end of a key are its value. Query head h
        reads key/value head `h * kv_heads // heads`. The result [T, heads, value_dim] is `softmax(scale * q
        k) v`; if `softcap` is not 0 the scores go through `softcap * tanh(score / softcap)` first, and
        `sinks` [heads] join the softmax's denominator as one more score per head. A row with a count of 0
        gives zeros.

        `bias` [heads, 2 * reach + 1] is then added to the scores by distance: `bias[h, reach + d]` to the
        score of a cell d entries after the row's own in `cells`, before it if d is negative; beyond `reach`
        the outermost entry is used. `places` int32 [T] are the rows' own entries; None: the last entry of
        each row's list.

        Neighbouring rows whose lists overlap share the work: a prompt (one start, growing counts), a sliding
        window (both growing), an image (equal ranges). A row's result is the same bits whatever else is in
        the batch, wherever the cells are, and wherever the list begins, provided that start is the same
        modulo `LIST_ALIGNMENT`. Kernels may multiply what is not stored as F32 as integers of 16 bits.
        """

    @abstractmethod
    def choose_cells(
        self,
        q: Array,
        weights: Array,
        keys: Storage,
        cells: Array,
        starts: Array,
        counts: Array,
        most: int,
        group: int = 1,
    ) -> tuple[Array, Array, Array]:
        """Choose at most `most` (1 or more) of the cells that each row sees, for attention to the others.

        Row t sees `cells[starts[t] : starts[t] + counts[t]]`. A cell's score is the sum over heads h of
        `weights[t, h] * max(q[t, h] k, 0)` with its key k: q [T, heads, dim], weights [T, heads], keys
        [capacity, 1, dim]. The cells with the largest scores are chosen, among equal scores those that come
        first; NaN counts as the largest. A row that sees no more than `most` keeps all. This is the
        lightning indexer of DeepSeek V3.2 (DeepSeek-AI, arXiv:2512.02556, section 2.1).

        A row's cells may instead be chosen by groups of `group`, which divides `most`, from the start on: a
        group's key is that of its last cell, and `most // group` groups are chosen. Cells after the last
        whole group are kept beside them. The indexers of GLM 5.3 Flash and Qwen 3.8 Flash Next choose like
        this.

        Returns lists as `attention` takes them, int32: cells, starts [T] and counts [T]. A row's cells stay
        in their order. Lists begin at multiples of `LIST_ALIGNMENT`, and neighbouring rows that keep all of
        one list share it; the values between lists mean nothing. A row's choice is the same whatever else is
        in the batch, wherever the cells are, and wherever the list begins.
        """

    @abstractmethod
    def choose_blocks(
        self,
        q: Array,
        keys: Storage,
        cells: Array,
        starts: Array,
        counts: Array,
        block: int,
        most: int,
        local: int,
    ) -> tuple[Array, Array, Array]:
        """Choose for each head at most `most` blocks of the cells that each row sees, for attention by it.

        Row t sees `cells[starts[t] : starts[t] + counts[t]]`, in blocks of `block` from the start on; the
        last may be smaller. A block's score for head h is the largest product of `q[t, h]` and a key in
        it: q [T, heads, dim], keys [capacity, 1, dim]. The last `local` blocks, at most `most`, are chosen,
        then those with the largest scores; among equal ones the first, and NaN counts as the largest. This is
        the indexer of MiniMax-M3.

        Returns lists as those of `choose_cells`, but for each head: cells, starts [heads, T] and counts
        [heads, T]. Numbers of cells are `cell * heads + h`, as in `Storage.by_head`.
        """

    @abstractmethod
    def pool_groups(
        self,
        rows: Storage,
        cells: Array,
        starts: Array,
        counts: Array,
        bias: Array,
        *,
        overlapping: bool = False,
    ) -> Array:
        """Return for each row of the batch the sum of its group's values, weighed by gates: [T, dim].

        Row t lists `cells[starts[t] : starts[t] + counts[t]]` of `rows` [capacity, 1, 2 * width], stored as
        F32: `width` values, then as many gates. `bias` [group, width] is added to the gates, its row `i %
        group` to those of the i-th cell. Column d of the result is the sum over the cells of `softmax(gates)
        * values` in column d, the softmax being over the cells. A row completes a group if it lists `group`
        cells; otherwise it gives zeros.

        dim is width. If groups are `overlapping`, it is half of that, and rows of `2 * group` cells complete
        one, too: the last `group` cells give the second halves of their values and gates, those before them
        the first halves. This is the compression of DeepSeek V4's keys (DeepSeek-AI, "DeepSeek V4", 2026,
        section 2.3).
        """

    @abstractmethod
    def join_lists(
        self, first: tuple[Array, Array, Array], second: tuple[Array, Array, Array], most: int
    ) -> tuple[Array, Array, Array]:
        """Return each row's list of `first` followed by that of `second`, together at most `most` entries.

        All are lists as `attention` takes them: cells, starts [T] and counts [T]. Those returned begin at
        multiples of `LIST_ALIGNMENT`; the values between them mean nothing.
        """

    # --- sampling: from rows of logits [vocabulary] ----------------------------------------------------

    def finish(self) -> None:
        """Wait for all operations so far, and raise their errors, if they run while the host goes on."""
        return

    def choose(self, rows: Sequence[sampling.Draw]) -> list[int | None]:
        """Return for each row the token at `uniform` of its distribution, or the likeliest at temperature 0.

        The result is None if no token can be chosen: no logits, a NaN or +inf among those allowed, or all
        -inf.
        """
        return [sampling.choose(row._replace(logits=self.numpy(row.logits))) for row in rows]

    def likeliest(self, rows: Sequence[tuple[Array, int]], count: int) -> list[sampling.Likeliest]:
        """Return the `count` likeliest tokens of each row, given as its logits and a token asked about."""
        found = []
        for array, token in rows:
            logits = np.ascontiguousarray(self.numpy(array))
            largest = float(logits.max())
            total = self.sum_of_exponentials(logits, largest) if np.isfinite(largest) else np.nan
            best = self.top_k(logits, min(count, logits.size)) if count else np.empty(0, np.int64)
            found.append(sampling.Likeliest(largest, total, float(logits[token]), best, logits[best]))
        return found

    # These take logits on the host.

    def top_k(self, logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        """Return the ids of the `k` largest logits, descending; the lower id wins a tie.

        `k` is at least 1.
        """
        return sampling.top_k(logits, k)

    def sum_of_exponentials(self, logits: NDArray[np.float32], largest: float) -> float:
        """Return the sum of `e ** (logit - largest)`."""
        return sampling.sum_of_exponentials(logits, largest)

    # --- the process -----------------------------------------------------------------------------------

    def recorder(self) -> Recorder | None:
        """Return a recorder of computations, or None if replaying would not help."""
        return None

    def threads(self) -> int:
        """The number of this process's threads that operations use."""
        return 1

    def set_threads(self, count: int) -> None:
        """Use `count` threads from now on, but at most one per processor.

        0 leaves the number unchanged. Raises `ValueError` for a negative number.
        """
        if count < 0:
            raise ValueError(f"the number of threads must be positive, or 0 for automatic, not {count}")

    def available_memory(self, promised: int = 0) -> int:
        """Return how many bytes weights and caches may still take where they are kept.

        `promised` bytes of the machine's own memory are for other processes.
        """
        return machine.available_memory() - promised

    def tune(self) -> None:
        """Choose the fastest forms of kernels, before the first weights are loaded.

        That may take 20 seconds once on a machine.
        """
        return

    def is_lost(self, error: BaseException) -> bool:
        """Whether after `error` this process can compute nothing any more."""
        return False

    def join_ranks(self, meeting: Path, rank: int, count: int, timeout_s: float) -> Collectives:
        """Meet the other processes that compute the same model, at the file `meeting`; this one is `rank`.

        It waits at most `timeout_s`. Raises `UnavailableError` where there is no way to do so, and
        `RuntimeError` if the others do not come.
        """
        raise UnavailableError(f"{self.kernels} has no tensor parallelism")

    def keep_freed_memory(self) -> None:
        """Make this process keep freed memory for reuse, if that makes computing faster."""
        return
