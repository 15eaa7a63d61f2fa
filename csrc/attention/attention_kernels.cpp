// The attention kernels, compiled once per instruction set.
//
// A tile of keys is transposed, so that a score is a sum down a column and 64 cells' scores are a few vectors: scores
// and weighted values are then the same kind of small matrix product. Every score and every value of the result is
// summed in one order, whichever others are computed beside it, and a row never reads what it may not see.
#include "attention/attention.h"
#include "attention/tiles.h"
#include "vector/vector.h"

namespace puna {
namespace {

// The part of a product held in registers: rows, and vectors of columns. Loads stay behind the additions.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int max_rows = 6, max_columns = 4;
#elif defined(__AVX2__)
constexpr int max_rows = 6, max_columns = 2;
#else
constexpr int max_rows = 4, max_columns = 2;
#endif

template <int N>
struct Count {
    static constexpr int value = N;
};

// body(Count<count>()) for a count from 1 to Max that is known only at run time.
template <int Max, class Body>
PUNA_INLINE void with_count(int count, Body&& body) {
    if constexpr (Max > 1) {
        if (count < Max) return with_count<Max - 1>(count, body);
    }
    body(Count<Max>());
}

// c[m] += a[m] @ b for M rows and N vectors' worth of columns; a [M, depth], b [depth, N * width].
template <int M, int N>
void multiply_part(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth, float* c,
                   int64_t c_stride) {
    Vec sums[M][N];
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) sums[m][n] = Vec::load(c + m * c_stride + n * Vec::width);
    }
    for (int k = 0; k < depth; k++) {
        Vec row[N];
        for (int n = 0; n < N; n++) row[n] = Vec::load(b + n * Vec::width);
        b += b_stride;
        for (int m = 0; m < M; m++) {
            const Vec factor = Vec::splat(a[m * a_stride + k]);
            for (int n = 0; n < N; n++) sums[m][n] = fma(factor, row[n], sums[m][n]);
        }
    }
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) sums[m][n].store(c + m * c_stride + n * Vec::width);
    }
}

// The same for up to max_rows rows and any number of vectors of columns.
void multiply(int rows, int vectors, const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth,
              float* c, int64_t c_stride) {
    with_count<max_rows>(rows, [&](auto m) {
        for (int n = 0; n < vectors; n += max_columns) {
            with_count<max_columns>(min(max_columns, vectors - n), [&](auto columns) {
                multiply_part<decltype(m)::value, decltype(columns)::value>(
                    a, a_stride, b + n * Vec::width, b_stride, depth, c + n * Vec::width, c_stride);
            });
        }
    });
}

// 2^x for x <= 0, to 1e-7 of it; exactly 1 at 0, 2^-126 below that. NaN stays.
PUNA_INLINE Vec power_of_two(Vec x) {
    x = max(Vec::splat(-126), x);
    const Vec n = round(x), r = x - n;
    Vec p = Vec::splat(0x1.41fbbcp-13f);   // the polynomial of least relative error on [-1/2, 1/2]
    p = fma(p, r, Vec::splat(0x1.5f3e54p-10f));
    p = fma(p, r, Vec::splat(0x1.3b2d4cp-7f));
    p = fma(p, r, Vec::splat(0x1.c6aee8p-5f));
    p = fma(p, r, Vec::splat(0x1.ebfbdcp-3f));
    p = fma(p, r, Vec::splat(0x1.62e43p-1f));
    p = fma(p, r, Vec::splat(1));
    return scale_by_power(p, n);
}

constexpr float minus_infinity = -1.0f / 0.0f;
constexpr float log2_e = 0x1.715476p0f;

PUNA_INLINE float power_of_two(float x) {
    float lanes[Vec::width];
    power_of_two(Vec::splat(x)).store(lanes);
    return lanes[0];
}

// What is added to the scores of one query vector by distance; `ahead` is that of the tile's first cell.
struct Bias {
    const float* values;   // [2 * reach + 1] or null
    int reach, ahead;
};

// Cells beyond its reach count as those at its ends.
PUNA_INLINE void add_bias(float* scores, Range seen, Bias bias) {
    const float* middle = bias.values + bias.reach;
    if (bias.ahead + seen.begin >= -bias.reach && bias.ahead + seen.end - 1 <= bias.reach) {
        const float* values = middle + bias.ahead;
        for (int j = seen.begin; j < seen.end; j++) scores[j] += values[j] * log2_e;
    } else {
        for (int j = seen.begin; j < seen.end; j++) {
            scores[j] += middle[max(-bias.reach, min(bias.reach, bias.ahead + j))] * log2_e;
        }
    }
}

// Turns the scores of one query vector into weights of the running softmax. `sums` is a vector of partial sums.
PUNA_INLINE void add_scores(float* scores, Range seen, const AttentionCall& call, Bias bias, float& largest, float* sums,
                            float* values) {
    const int begin = seen.begin / Vec::width * Vec::width;   // a tile is whole vectors
    const int end = (seen.end + Vec::width - 1) / Vec::width * Vec::width;
    if (call.softcap != 0) {
        const Vec cap = Vec::splat(call.softcap * log2_e);
        for (int j = begin; j < end; j += Vec::width) (cap * tanh(Vec::load(scores + j))).store(scores + j);
    }
    if (bias.values) add_bias(scores, seen, bias);
    for (int j = begin; j < seen.begin; j++) scores[j] = minus_infinity;
    for (int j = seen.end; j < end; j++) scores[j] = minus_infinity;
    Vec most = Vec::splat(largest);
    for (int j = begin; j < end; j += Vec::width) most = max(most, Vec::load(scores + j));
    const float now_largest = max_lane(most);
    Vec sum = Vec::load(sums);
    if (now_largest != largest) {
        const Vec factor = power_of_two(Vec::splat(largest - now_largest));
        sum = sum * factor;
        const int value_dim = call.padded_value_dim();
        for (int d = 0; d < value_dim; d += Vec::width) (Vec::load(values + d) * factor).store(values + d);
        largest = now_largest;
    }
    for (int j = begin; j < end; j += Vec::width) {
        const Vec weight = power_of_two(Vec::load(scores + j) - Vec::splat(now_largest));
        weight.store(scores + j);
        sum = sum + weight;
    }
    sum.store(sums);
}

// What a block's query vectors of one key/value head are computed from and into.
struct Head {
    const float* q;     // [vectors, padded_dim], scaled
    float* sums;        // [vectors, width]
    AttentionState state;
    int first_row, first_head;
};

PUNA_INLINE Bias bias_of(const AttentionCall& call, const Head& head, int vector, int tile) {
    if (!call.bias) return {nullptr, 0, 0};
    const int row = head.first_row + vector / call.group(), query_head = head.first_head + vector % call.group();
    return {call.bias + int64_t(query_head) * (2 * call.reach + 1), call.reach, tile - call.place(row)};
}

// `multiply`, which also prefetches the next tile where there is little to compute.
PUNA_INLINE void multiply_and_prefetch(bool few, CellPrefetcher& next_tile, int rows, int vectors, const float* a,
                                       int64_t a_stride, const float* b, int64_t b_stride, int depth, float* c,
                                       int64_t c_stride) {
    const bool prefetches = few && !next_tile.done();
    const int part = prefetches ? depth_part : depth, lines = next_tile.lines(multiply_work, (depth + part - 1) / part);
    for (int k = 0; k < depth; k += part) {
        if (prefetches) next_tile.prefetch(lines);
        multiply(rows, vectors, a + k, a_stride, b + k * b_stride, b_stride, min(part, depth - k), c, c_stride);
    }
}

// One tile: keys transposed [dim, tile_cells], values [tile_cells, padded_value_dim]; `seen` per row of the block.
void attend_tile(const AttentionCall& call, const Head& head, int vectors, int tile, const Range* seen,
                 const float* keys, const float* values, CellPrefetcher& next_tile, float* scores) {
    const int q_stride = call.padded_dim(), stride = call.padded_value_dim(), group = call.group();
    const int value_vectors = (call.value_dim + Vec::width - 1) / Vec::width;
    const bool few = vectors <= max_rows;
    for (int m = 0; m < vectors; m += max_rows) {
        const int taken = min(max_rows, vectors - m);
        Range ranges[max_rows], all = {tile_cells, 0};
        for (int i = 0; i < taken; i++) {
            ranges[i] = seen[(m + i) / group];
            if (ranges[i].empty()) continue;
            all = {min(all.begin, ranges[i].begin), max(all.end, ranges[i].end)};
        }
        if (all.empty()) continue;
        const int begin = all.begin / Vec::width, end = (all.end + Vec::width - 1) / Vec::width;
        for (int i = 0; i < taken; i++) {
            for (int n = begin; n < end; n++) Vec::splat(0).store(scores + i * tile_cells + n * Vec::width);
        }
        multiply_and_prefetch(few, next_tile, taken, end - begin, head.q + int64_t(m) * q_stride, q_stride,
                              keys + begin * Vec::width, tile_cells, call.dim, scores + begin * Vec::width, tile_cells);
        float* to = head.state.values + int64_t(m) * stride;
        for (int i = 0; i < taken; i++) {
            if (ranges[i].empty()) continue;
            add_scores(scores + i * tile_cells, ranges[i], call, bias_of(call, head, m + i, tile),
                       head.state.largest[m + i], head.sums + (m + i) * Vec::width, to + int64_t(i) * stride);
        }
        // Only cells that all see: a NaN beyond what a row sees, times a weight of zero, would reach it.
        for (int i = 0, next; i < taken; i = next) {
            for (next = i + 1; next < taken && ranges[next] == ranges[i]; next++) {}
            const Range cells = ranges[i];
            if (cells.empty()) continue;
            multiply_and_prefetch(few, next_tile, next - i, value_vectors, scores + i * tile_cells + cells.begin,
                                  tile_cells, values + int64_t(cells.begin) * stride, stride, cells.end - cells.begin,
                                  to + int64_t(i) * stride, stride);
        }
    }
}

// Copies the block's query vectors, scaled, and empties its state.
void start_block(const AttentionCall& call, const AttentionBlock& block, AttentionState state, float* q, float* sums) {
    const int dim = call.padded_dim(), value_dim = call.padded_value_dim(), group = call.group();
    const Vec scale = Vec::splat(call.softcap != 0 ? call.scale / call.softcap : call.scale * log2_e);
    int m = 0;
    for (int kv_head = block.kv_head; kv_head < block.kv_head + block.kv_heads; kv_head++) {
        for (int row = block.first; row < block.first + block.rows; row++) {
            for (int head = kv_head * group; head < (kv_head + 1) * group; head++, m++, q += dim) {
                const float* from = call.q + (int64_t(row) * call.heads + head) * call.dim;
                unpack<KVType::f32>(reinterpret_cast<const uint8_t*>(from), call.dim, q);
                for (int d = 0; d < call.dim; d += Vec::width) (Vec::load(q + d) * scale).store(q + d);
                state.largest[m] = minus_infinity;
                for (int d = 0; d < value_dim; d++) state.values[int64_t(m) * value_dim + d] = 0;
                Vec::splat(0).store(sums + m * Vec::width);
            }
        }
    }
}

void attend_chunk(const AttentionCall& call, const AttentionBlock& block, int chunk, AttentionState state,
                  float* scratch) {
    const int vectors = block.rows * call.group();   // of one key/value head
    const int all_vectors = vectors * block.kv_heads;
    const int dim = call.padded_dim(), value_dim = call.padded_value_dim();
    float* q = scratch;
    float* sums = q + int64_t(all_vectors) * dim;
    float* scores = sums + all_vectors * Vec::width;
    float* transposed_keys = scores + max_rows * tile_cells;
    float* few_keys = transposed_keys + int64_t(tile_cells) * dim;
    float* values_unpacked = few_keys + Vec::width * dim;
    start_block(call, block, state, q, sums);

    const int begin = max(block.begin, chunk * attention_chunk);
    const int end = min(block.end, (chunk + 1) * attention_chunk);
    Range seen[attention_vectors];   // per row of the block
    const int first_tile = begin < end ? begin / tile_cells * tile_cells : end;   // rows may see nothing
    for (int tile = first_tile; tile < end; tile += tile_cells) {
        const Range used = {max(0, begin - tile), min(tile_cells, end - tile)};
        for (int r = 0; r < block.rows; r++) {
            const int row = block.first + r;
            seen[r] = {max(0, call.starts[row] - tile), min(tile_cells, call.end(row) - tile)};
        }
        const int32_t* cells = call.cells + tile;
        const int next = min(end, tile + tile_cells);
        CellPrefetcher next_tile(call.cells + next, min(tile_cells, end - next),
                                 key_rows(call, block.kv_head), value_rows(call, block.kv_head), block.kv_heads);
        for (int h = 0; h < block.kv_heads; h++) {
            const int head = block.kv_head + h;
            const Rows keys = key_rows(call, head), values = value_rows(call, head);
            transpose_keys(keys, cells, used, next_tile, few_keys, transposed_keys);
            for (int j = used.begin; j < used.end; j += cells_part) {
                next_tile.prefetch(next_tile.lines(unpack_work, tile_cells / cells_part));
                unpack_cells(values, cells + j, min(cells_part, used.end - j), values_unpacked + j * value_dim);
            }
            const int first = h * vectors;
            attend_tile(call,
                        {q + int64_t(first) * dim,
                         sums + first * Vec::width,
                         {state.largest + first, nullptr, state.values + int64_t(first) * value_dim},
                         block.first,
                         head * call.group()},
                        vectors, tile, seen, transposed_keys, values_unpacked, next_tile, scores);
        }
    }
    for (int m = 0; m < all_vectors; m++) state.sum[m] = sum_lanes(Vec::load(sums + m * Vec::width));
}

void merge_states(const AttentionCall& call, int vectors, AttentionState earlier, AttentionState later) {
    const int value_dim = call.padded_value_dim();
    for (int m = 0; m < vectors; m++) {
        if (later.sum[m] == 0) continue;   // saw nothing of the later chunk
        float* to = earlier.values + int64_t(m) * value_dim;
        const float* from = later.values + int64_t(m) * value_dim;
        if (earlier.sum[m] == 0) {
            earlier.largest[m] = later.largest[m];
            earlier.sum[m] = later.sum[m];
            for (int d = 0; d < value_dim; d += Vec::width) Vec::load(from + d).store(to + d);
            continue;
        }
        const float largest = later.largest[m] > earlier.largest[m] ? later.largest[m] : earlier.largest[m];
        const float a = power_of_two(earlier.largest[m] - largest), b = power_of_two(later.largest[m] - largest);
        earlier.largest[m] = largest;
        earlier.sum[m] = earlier.sum[m] * a + later.sum[m] * b;
        for (int d = 0; d < value_dim; d += Vec::width) {
            (Vec::load(to + d) * Vec::splat(a) + Vec::load(from + d) * Vec::splat(b)).store(to + d);
        }
    }
}

// What the weighted values of a query vector are to be multiplied by in the end.
float final_factor(float largest, float sum, const float* sink) {
    if (!sink) return 1 / sum;
    const float score = *sink * log2_e, most = score > largest ? score : largest;
    const float a = power_of_two(largest - most), b = power_of_two(score - most);
    return a / (sum * a + b);
}

void finish_block(const AttentionCall& call, const AttentionBlock& block, AttentionState state) {
    const int group = call.group();
    int m = 0;
    for (int kv_head = block.kv_head; kv_head < block.kv_head + block.kv_heads; kv_head++) {
        for (int row = block.first; row < block.first + block.rows; row++) {
            for (int head = kv_head * group; head < (kv_head + 1) * group; head++, m++) {
                const float* sink = call.sinks ? call.sinks + head : nullptr;
                const bool blind = call.counts[row] == 0;   // a row that sees nothing gives zeros
                const Vec factor = Vec::splat(blind ? 0 : final_factor(state.largest[m], state.sum[m], sink));
                const float* from = state.values + int64_t(m) * call.padded_value_dim();
                float* to = call.out + (int64_t(row) * call.heads + head) * call.value_dim;
                int d = 0;
                for (; d + Vec::width <= call.value_dim; d += Vec::width) (Vec::load(from + d) * factor).store(to + d);
                if (d < call.value_dim) store_part(Vec::load(from + d) * factor, to + d, call.value_dim - d);
            }
        }
    }
}

}  // namespace

const AttentionKernels PUNA_SET::attention_kernels = {attend_chunk, merge_states, finish_block};

}  // namespace puna
