// The attention kernels, compiled once per instruction set.
//
// A tile of keys is transposed, so that a score is a sum down a column and the scores of 64 cells are a few vectors:
// scores and weighted values are then the same kind of small matrix product, of floats or of 16-bit integers. All scores
// of a chunk are computed first, then their softmax, then the values; so a query vector's largest score is searched for
// once, and nothing is rescaled. Every score and every value of the result is summed in a fixed order, whatever is
// computed with it, and a row never depends on cells it must not see.
#include "attention/attention.h"
#include "attention/products.h"
#include "attention/tiles.h"
#include "attention/words.h"
#include "vector/vector.h"

namespace puna {
namespace {

Rows key_rows(const AttentionCall& call, int head) {
    const int64_t bytes = kv_bytes(call.key_type, call.dim);
    return {static_cast<const uint8_t*>(call.keys) + head * bytes, call.kv_heads * bytes, bytes, call.key_type,
            call.dim, call.padded_dim()};
}

Rows value_rows(const AttentionCall& call, int head) {
    return {static_cast<const uint8_t*>(call.values) + head * call.value_step, call.kv_heads * call.value_step,
            kv_bytes(call.value_type, call.value_dim), call.value_type, call.value_dim, call.padded_value_dim()};
}

// 2^x for x <= 0, with a relative error of 1e-7; exactly 1 at 0, 2^-126 below that. NaN stays.
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

constexpr float minus_infinity = -__builtin_inff();   // clang takes no division by zero for a constant
constexpr float log2_e = 0x1.715476p0f;

PUNA_INLINE float power_of_two(float x) {
    float lanes[Vec::width];
    power_of_two(Vec::splat(x)).store(lanes);
    return lanes[0];
}

// Biases added to one query vector's scores, by distance; `ahead` is the first cell's.
struct Bias {
    const float* values;   // [2 * reach + 1] or null
    int reach, ahead;
};

PUNA_INLINE Bias bias_of(const AttentionCall& call, int row, int head, int first_cell) {
    if (!call.bias) return {nullptr, 0, 0};
    return {call.bias + int64_t(head) * (2 * call.reach + 1), call.reach, first_cell - call.place(row)};
}

// Cells beyond the reach get the outermost bias.
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

// Turns one query vector's scores for the cells it sees of a chunk into weights: 2^(score - largest).
PUNA_INLINE void weigh(float* scores, Range seen, float softcap, Bias bias, float& largest, float& sum) {
    const int begin = seen.begin / Vec::width * Vec::width;   // tiles are whole vectors
    const int end = (seen.end + Vec::width - 1) / Vec::width * Vec::width;
    if (softcap != 0) {
        const Vec cap = Vec::splat(softcap * log2_e);
        for (int j = begin; j < end; j += Vec::width) (cap * tanh(Vec::load(scores + j))).store(scores + j);
    }
    if (bias.values) add_bias(scores, seen, bias);
    for (int j = begin; j < seen.begin; j++) scores[j] = minus_infinity;
    for (int j = seen.end; j < end; j++) scores[j] = minus_infinity;
    Vec most = Vec::splat(minus_infinity), others = most;   // two, because each operation waits for the one before it
    int j = begin;
    for (; j + Vec::width < end; j += 2 * Vec::width) {
        most = max(most, Vec::load(scores + j));
        others = max(others, Vec::load(scores + j + Vec::width));
    }
    if (j < end) most = max(most, Vec::load(scores + j));
    largest = max_lane(max(most, others));
    Vec total = Vec::splat(0);
    for (j = begin; j < end; j += Vec::width) {
        const Vec weight = power_of_two(Vec::load(scores + j) - Vec::splat(largest));
        weight.store(scores + j);
        total = total + weight;
    }
    sum = sum_lanes(total);
}

// Like `multiply`, but also prefetches the next tile.
template <bool adds>
void multiply_and_prefetch(int vectors, CellPrefetcher& next_tile, int rows, int columns, const float* a,
                           int64_t a_stride, const float* b, int64_t b_stride, int depth, float* c, int64_t c_stride) {
    if (vectors > max_rows || next_tile.done()) {
        next_tile.prefetch(next_tile.lines_of_multiplying((vectors + max_rows - 1) / max_rows));
        return multiply<adds>(rows, columns, a, a_stride, b, b_stride, depth, c, c_stride);
    }
    const int lines = next_tile.lines_of_multiplying((depth + depth_part - 1) / depth_part);
    for (int k = 0; k < depth; k += depth_part) {
        next_tile.prefetch(lines);
        const int part = min(depth_part, depth - k);
        if (adds || k > 0) multiply<true>(rows, columns, a + k, a_stride, b + k * b_stride, b_stride, part, c, c_stride);
        else multiply<false>(rows, columns, a, a_stride, b, b_stride, part, c, c_stride);
    }
}

// The cells from `first` to `end` that a row sees, counted from `first`.
PUNA_INLINE Range seen_by(const AttentionCall& call, int row, int first, int end) {
    return {max(0, call.starts[row] - first), min(end, call.end(row)) - first};
}

// Calls use(first, count, cells) for each few query vectors that are multiplied together and see any cells of a tile;
// `seen` per row of the block.
template <class Use>
PUNA_INLINE void for_few_vectors(const AttentionCall& call, int vectors, const Range* seen, Use use) {
    for (int m = 0; m < vectors; m += max_rows) {
        const int taken = min(max_rows, vectors - m);
        Range all = {tile_cells, 0};
        for (int row = m / call.group(); row <= (m + taken - 1) / call.group(); row++) {
            if (!seen[row].empty()) all = {min(all.begin, seen[row].begin), max(all.end, seen[row].end)};
        }
        if (!all.empty()) use(m, taken, all);
    }
}

// Scores [vectors] of a tile: keys transposed [dim, tile_cells].
void score_tile(const AttentionCall& call, int vectors, const Range* seen, const float* q, const float* keys,
                CellPrefetcher& next_tile, float* scores) {
    const int q_stride = call.padded_dim();
    for_few_vectors(call, vectors, seen, [&](int m, int taken, Range cells) {
        const int begin = cells.begin / Vec::width, end = (cells.end + Vec::width - 1) / Vec::width;
        multiply_and_prefetch<false>(vectors, next_tile, taken, end - begin, q + int64_t(m) * q_stride, q_stride,
                                     keys + begin * Vec::width, tile_cells, call.dim,
                                     scores + int64_t(m) * attention_score_stride + begin * Vec::width,
                                     attention_score_stride);
    });
}

// Adds a tile of values [tile_cells, padded_value_dim], weighted, to the values of [vectors].
void add_values(const AttentionCall& call, int vectors, const Range* seen, const float* weights, const float* values,
                CellPrefetcher& next_tile, float* to) {
    const int stride = call.padded_value_dim(), group = call.group();
    const int value_vectors = (call.value_dim + Vec::width - 1) / Vec::width;
    for (int m = 0, taken; m < vectors; m += taken) {
        // Only cells that all rows see: beyond them, a NaN times a weight of zero would spoil a row.
        const Range cells = seen[m / group];
        for (taken = 1; taken < max_rows && m + taken < vectors && seen[(m + taken) / group] == cells;) taken++;
        if (cells.empty()) continue;
        multiply_and_prefetch<true>(vectors, next_tile, taken, value_vectors,
                                    weights + int64_t(m) * attention_score_stride + cells.begin, attention_score_stride,
                                    values + int64_t(cells.begin) * stride, stride, cells.end - cells.begin,
                                    to + int64_t(m) * stride, stride);
    }
}

#if defined(__AVX512F__)
// The same as score_tile, of integers: queries and keys [pairs_of(dim), tile_cells] in the units `q_worth` [vectors] and
// `key_worth` [tile_cells].
void score_words(const AttentionCall& call, int vectors, const Range* seen, const float* q, const float* q_worth,
                 const float* keys, const float* key_worth, CellPrefetcher& next_tile, float* scores) {
    const int q_stride = call.padded_dim(), lines = next_tile.lines_of_multiplying((vectors + max_rows - 1) / max_rows);
    for_few_vectors(call, vectors, seen, [&](int m, int taken, Range cells) {
        next_tile.prefetch(lines);
        const int begin = cells.begin / Vec::width * Vec::width;
        multiply_pairs(taken, (cells.end - begin + Vec::width - 1) / Vec::width, q + int64_t(m) * q_stride, q_stride,
                       keys + begin, tile_cells, pairs_of(call.dim),
                       [&](int i, int v, Vec sum) __attribute__((always_inline)) {
                           const int first = begin + v * Vec::width;
                           const Vec worth = Vec::load(key_worth + first) * Vec::splat(q_worth[m + i]);
                           (sum * worth).store(scores + int64_t(m + i) * attention_score_stride + first);
                       });
    });
}

// The same as add_values, of integers: weights and values [tile_cells / 2, padded_value_dim], whose products have the
// units `worth` [vectors, tile_runs].
void add_value_words(const AttentionCall& call, int vectors, const Range* seen, const float* weights,
                     const float* worth, const float* values, CellPrefetcher& next_tile, float* to) {
    const int stride = call.padded_value_dim(), value_vectors = (call.value_dim + Vec::width - 1) / Vec::width;
    const int lines = next_tile.lines_of_multiplying((vectors + max_rows - 1) / max_rows);
    for_few_vectors(call, vectors, seen, [&](int m, int taken, Range cells) {
        next_tile.prefetch(lines);
        for (int run = 0; run < tile_runs; run++) {
            const int begin = max(cells.begin, run * run_cells) / 2, end = (min(cells.end, (run + 1) * run_cells) + 1) / 2;
            if (begin >= end) continue;
            multiply_pairs(taken, value_vectors, weights + int64_t(m) * attention_score_stride + begin,
                           attention_score_stride, values + int64_t(begin) * stride, stride, end - begin,
                           [&](int i, int v, Vec sum) __attribute__((always_inline)) {
                               float* sums = to + int64_t(m + i) * stride + v * Vec::width;
                               const Vec unit = Vec::splat(worth[(m + i) * tile_runs + run]);
                               fma(sum, unit, Vec::load(sums)).store(sums);
                           });
        }
    });
}
#endif

// Copies the block's query vectors, scaled, and empties its state.
void start_block(const AttentionCall& call, const AttentionBlock& block, AttentionState state, float* q) {
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
                state.sum[m] = 0;
                for (int d = 0; d < value_dim; d++) state.values[int64_t(m) * value_dim + d] = 0;
            }
        }
    }
}

void attend_chunk(const AttentionCall& call, const AttentionBlock& block, int chunk, AttentionState state,
                  float* scratch) {
    const int group = call.group(), vectors = block.rows * group;   // of one key/value head
    const int dim = call.padded_dim(), value_dim = call.padded_value_dim(), width = max(dim, value_dim);
    float* q = scratch;
    float* scores = q + int64_t(vectors) * block.kv_heads * dim;
    float* gathered = scores + int64_t(vectors) * block.kv_heads * attention_score_stride;
    float* few_rows = gathered + int64_t(tile_cells) * width;
    start_block(call, block, state, q);
#if defined(__AVX512F__)
    const bool key_words = as_words(call.key_type), value_words = as_words(call.value_type);
    float* worth = few_rows + Vec::width * (width + 1);   // of the cells of a tile
    float* q_worth = worth + tile_cells;
    float* weight_worth = q_worth + int64_t(vectors) * block.kv_heads;
    if (key_words) {
        for (int m = 0; m < vectors * block.kv_heads; m++) query_words(q + int64_t(m) * dim, call.dim, q_worth[m]);
    }
#else
    constexpr bool key_words = false, value_words = false;
#endif

    const int begin = max(block.begin, chunk * attention_chunk), end = min(block.end, (chunk + 1) * attention_chunk);
    if (begin >= end) return;   // rows may see nothing
    const int first_tile = begin / tile_cells * tile_cells;
    const Rows all_keys = key_rows(call, block.kv_head), all_values = value_rows(call, block.kv_head);
    Range seen[attention_vectors];   // per row of the block
    const auto look = [&](int tile) {
        for (int r = 0; r < block.rows; r++) seen[r] = seen_by(call, block.first + r, tile, min(end, tile + tile_cells));
        return Range{max(0, begin - tile), min(tile_cells, end - tile)};
    };
    const auto prefetcher = [&](int tile, const Rows& rows, bool words) {
        const int gather_work = vectors > max_rows ? 0 : words ? few_words_gather_work : few_gather_work;
        return CellPrefetcher(call.cells + tile, max(0, min(tile_cells, end - tile)), rows, block.kv_heads, gather_work);
    };

    for (int tile = first_tile; tile < end; tile += tile_cells) {
        const Range used = look(tile);
        const bool last = tile + tile_cells >= end;
        CellPrefetcher next_tile = last ? prefetcher(first_tile, all_values, key_words)
                                        : prefetcher(tile + tile_cells, all_keys, key_words);
        for (int h = 0; h < block.kv_heads; h++) {
            const Rows keys = key_rows(call, block.kv_head + h);
            const int64_t first = int64_t(h) * vectors;
            float* to = scores + first * attention_score_stride + (tile - first_tile);
#if defined(__AVX512F__)
            if (key_words) {
                gather_key_words(keys, call.cells + tile, used, next_tile, few_rows, gathered, worth);
                score_words(call, vectors, seen, q + first * dim, q_worth + first, gathered, worth, next_tile, to);
                continue;
            }
#endif
            transpose_keys(keys, call.cells + tile, used, next_tile, few_rows, gathered);
            score_tile(call, vectors, seen, q + first * dim, gathered, next_tile, to);
        }
    }
    for (int m = 0; m < vectors * block.kv_heads; m++) {
        const int row = block.first + m % vectors / group, head = (block.kv_head + m / vectors) * group + m % group;
        const Range cells = seen_by(call, row, first_tile, end);
        if (cells.empty()) continue;
        weigh(scores + int64_t(m) * attention_score_stride, cells, call.softcap, bias_of(call, row, head, first_tile),
              state.largest[m], state.sum[m]);
    }
    for (int tile = first_tile; tile < end; tile += tile_cells) {
        const Range used = look(tile);
        CellPrefetcher next_tile = prefetcher(tile + tile_cells, all_values, value_words);
        for (int h = 0; h < block.kv_heads; h++) {
            const Rows values = value_rows(call, block.kv_head + h);
            const int64_t first = int64_t(h) * vectors;
            float* weights = scores + first * attention_score_stride + (tile - first_tile);
            float* to = state.values + first * value_dim;
#if defined(__AVX512F__)
            if (value_words) {
                gather_value_words(values, call.cells + tile, used, next_tile, few_rows, gathered, worth);
                weight_words(call, vectors, seen, worth, weights, weight_worth);
                add_value_words(call, vectors, seen, weights, weight_worth, gathered, next_tile, to);
                continue;
            }
#endif
            for (int j = used.begin; j < used.end; j += cells_part) {
                next_tile.prefetch(next_tile.lines_of_gathering(tile_cells / cells_part));
                unpack_cells(values, call.cells + tile + j, min(cells_part, used.end - j), gathered + j * value_dim);
            }
            add_values(call, vectors, seen, weights, gathered, next_tile, to);
        }
    }
}

void merge_states(const AttentionCall& call, int vectors, AttentionState earlier, AttentionState later) {
    const int value_dim = call.padded_value_dim();
    for (int m = 0; m < vectors; m++) {
        if (later.sum[m] == 0) continue;   // sees nothing of the later chunk
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

// The final factor of a query vector's weighted values.
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
