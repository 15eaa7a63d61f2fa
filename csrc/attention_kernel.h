// The attention kernels, compiled once per instruction set by attention_<set>.cpp.
//
// Every query vector goes through the same additions in the same order whichever others are computed beside it:
// a score is summed lane by lane over the head dimension, a value cell by cell. Only the loads are shared.
#pragma once
#include "attention.h"
#include "vector.h"

namespace puna {
namespace {

constexpr int tile_cells = attention_tile;
// Query vectors that share a loaded key (taken four at a time) or value (taken `value_width` vectors at a time).
// Measured: more chains than the additions' latency needs, fewer than the registers hold.
constexpr int score_vectors = Vec::width == 16 ? 4 : 3;
constexpr int value_vectors = 4;
constexpr int value_width = Vec::width == 16 ? 4 : 2;
// Up to this many query vectors, converting keys on the way is cheaper than converting a tile first.
constexpr int few_vectors = 8;

PUNA_INLINE int smaller(int a, int b) { return a < b ? a : b; }
PUNA_INLINE int larger(int a, int b) { return a > b ? a : b; }

template <int N>
struct Count {
    static constexpr int value = N;
};

// body(Count<count>()) for a count from 1 to Most known only now.
template <int Most, class Body>
PUNA_INLINE void with_count(int count, Body&& body) {
    if constexpr (Most > 1) {
        if (count < Most) return with_count<Most - 1>(count, body);
    }
    body(Count<Most>());
}

template <class T>
PUNA_INLINE void prefetch(const T* row, int count) {
    for (int i = 0; i < count; i += int(64 / sizeof(T))) __builtin_prefetch(row + i);
}

// Scores of M query vectors with J keys: scores[m * tile_cells + j].
template <int M, int J, class T>
PUNA_INLINE void score(const float* q, int stride, const T* const* keys, int dim, float* scores) {
    Vec sums[M][J];
    for (int m = 0; m < M; m++) {
        for (int j = 0; j < J; j++) sums[m][j] = Vec::splat(0);
    }
    for (int d = 0; d < dim; d += Vec::width) {
        Vec query[M];
        for (int m = 0; m < M; m++) query[m] = Vec::load(q + int64_t(m) * stride + d);
        for (int j = 0; j < J; j++) {
            const Vec key = Vec::load(keys[j] + d);
            for (int m = 0; m < M; m++) sums[m][j] = fma(query[m], key, sums[m][j]);
        }
    }
    for (int m = 0; m < M; m++) {
        for (int j = 0; j < J; j += 4) {
            sum_lanes(sums[m][j], sums[m][j + 1], sums[m][j + 2], sums[m][j + 3], scores + m * tile_cells + j);
        }
    }
}

template <int M, class T>
PUNA_INLINE void score_cells(const float* q, int stride, const T* const* keys, int dim, int count, float* scores) {
    constexpr int J = M == 1 ? 8 : 4;   // eight sums at once to hide the latency of an addition
    for (int j = 0; j < count; j += J) score<M, J>(q, stride, keys + j, dim, scores + j);
}

// values[m] += shares[m][j] * cells[j], for M query vectors and D vectors' worth of the value dimension.
template <int M, int D, class T>
PUNA_INLINE void weigh(const float* shares, const T* const* cells, int count, int d, float* values, int stride) {
    Vec sums[M][D];
    for (int m = 0; m < M; m++) {
        for (int i = 0; i < D; i++) sums[m][i] = Vec::load(values + int64_t(m) * stride + d + i * Vec::width);
    }
    for (int j = 0; j < count; j++) {
        Vec cell[D];
        for (int i = 0; i < D; i++) cell[i] = Vec::load(cells[j] + d + i * Vec::width);
        for (int m = 0; m < M; m++) {
            const Vec share = Vec::splat(shares[m * tile_cells + j]);
            for (int i = 0; i < D; i++) sums[m][i] = fma(share, cell[i], sums[m][i]);
        }
    }
    for (int m = 0; m < M; m++) {
        for (int i = 0; i < D; i++) sums[m][i].store(values + int64_t(m) * stride + d + i * Vec::width);
    }
}

template <int M, class T>
PUNA_INLINE void weigh_cells(const float* shares, const T* const* cells, int count, int dim, float* values, int stride) {
    constexpr int D = M == 1 ? 8 : M <= 3 ? 4 : value_width;
    int d = 0;
    for (; d + D * Vec::width <= dim; d += D * Vec::width) weigh<M, D>(shares, cells, count, d, values, stride);
    for (; d < dim; d += Vec::width) weigh<M, 1>(shares, cells, count, d, values, stride);
}

// Turns the scores of one query vector with the first `visible` cells of a tile into shares of the running softmax.
// Shares up to `count` beyond the visible are zero.
PUNA_INLINE void take_scores(float* scores, int visible, int count, float softcap, float& largest, float& sum,
                             float* values, int value_dim) {
    const int padded = (visible + Vec::width - 1) / Vec::width * Vec::width;   // a tile is whole vectors
    constexpr float none = -1.0f / 0.0f;
    if (softcap != 0) {
        const Vec cap = Vec::splat(softcap), inverse = Vec::splat(1 / softcap);
        for (int j = 0; j < padded; j += Vec::width) (cap * tanh(Vec::load(scores + j) * inverse)).store(scores + j);
    }
    for (int j = visible; j < padded; j++) scores[j] = none;
    Vec most = Vec::splat(largest);
    for (int j = 0; j < padded; j += Vec::width) most = max(most, Vec::load(scores + j));
    const float now_largest = max_lane(most);
    Vec total = Vec::splat(0);
    for (int j = 0; j < padded; j += Vec::width) {
        const Vec share = exp(Vec::load(scores + j) - Vec::splat(now_largest));
        share.store(scores + j);
        total = total + share;
    }
    for (int j = padded; j < count; j++) scores[j] = 0;
    if (now_largest != largest) {
        float factor[Vec::width];
        exp(Vec::splat(largest - now_largest)).store(factor);
        sum *= factor[0];
        const Vec scale = Vec::splat(factor[0]);
        for (int d = 0; d < value_dim; d += Vec::width) (Vec::load(values + d) * scale).store(values + d);
        largest = now_largest;
    }
    sum += sum_lanes(total);
}

// One tile, its keys and values given by their rows' addresses (whole vectors long), `visible` per row of the block.
template <class T>
void attend_tile(const AttentionCall& call, const float* q, int dim, const T* const* keys, const T* const* values,
                 int value_dim, const int* visible, int vectors, AttentionState state, float* scores) {
    const int q_stride = call.padded_dim(), stride = call.padded_value_dim(), group = call.group();
    for (int m = 0; m < vectors; m += score_vectors) {
        const int taken = smaller(score_vectors, vectors - m);
        int count = 0;
        for (int i = 0; i < taken; i++) count = larger(count, visible[(m + i) / group]);
        const float* query = q + int64_t(m) * q_stride;
        float* s = scores + int64_t(m) * tile_cells;
        with_count<score_vectors>(taken, [&](auto n) {
            score_cells<decltype(n)::value>(query, q_stride, keys, dim, count, s);
        });
    }
    for (int m = 0; m < vectors; m += value_vectors) {
        const int taken = smaller(value_vectors, vectors - m);
        int count = 0;
        for (int i = 0; i < taken; i++) count = larger(count, visible[(m + i) / group]);
        if (count == 0) continue;
        float* s = scores + int64_t(m) * tile_cells;
        float* v = state.values + int64_t(m) * stride;
        for (int i = 0; i < taken; i++) {
            const int seen = visible[(m + i) / group];
            if (seen == 0) {
                for (int j = 0; j < count; j++) s[i * tile_cells + j] = 0;
            } else {
                take_scores(s + i * tile_cells, seen, count, call.softcap, state.largest[m + i], state.sum[m + i],
                            v + int64_t(i) * stride, stride);
            }
        }
        with_count<value_vectors>(taken, [&](auto n) {
            weigh_cells<decltype(n)::value>(s, values, count, value_dim, v, stride);
        });
    }
}

// Copies rows as floats, filled up with zeros to `padded`.
template <class T>
void unpack_rows(const T* const* rows, int count, int dim, int padded, float* to) {
    for (int j = 0; j < count; j++, to += padded) {
        int d = 0;
        for (; d + Vec::width <= dim; d += Vec::width) Vec::load(rows[j] + d).store(to + d);
        if (d < dim) load_part(rows[j] + d, dim - d).store(to + d), d += Vec::width;
        for (; d < padded; d++) to[d] = 0;
    }
}

// Copies the block's query vectors, scaled, and empties its state.
void start_block(const AttentionCall& call, const AttentionBlock& block, AttentionState state, float* q) {
    const int dim = call.padded_dim(), value_dim = call.padded_value_dim(), group = call.group();
    const Vec scale = Vec::splat(call.scale);
    int m = 0;
    for (int kv_head = block.kv_head; kv_head < block.kv_head + block.kv_heads; kv_head++) {
        for (int row = block.first; row < block.first + block.rows; row++) {
            for (int head = kv_head * group; head < (kv_head + 1) * group; head++, m++, q += dim) {
                const float* from = call.q + (int64_t(row) * call.heads + head) * call.dim;
                unpack_rows(&from, 1, call.dim, dim, q);
                for (int d = 0; d < dim; d += Vec::width) (Vec::load(q + d) * scale).store(q + d);
                state.largest[m] = -1.0f / 0.0f;
                state.sum[m] = 0;
                for (int d = 0; d < value_dim; d++) state.values[int64_t(m) * value_dim + d] = 0;
            }
        }
    }
}

template <class T>
void attend_chunk(const AttentionCall& call, const AttentionBlock& block, int chunk, AttentionState state,
                  float* scratch) {
    const int vectors = block.rows * call.group();   // of one key/value head
    const int dim = call.padded_dim(), value_dim = call.padded_value_dim();
    float* q = scratch;
    float* scores = q + int64_t(vectors) * block.kv_heads * dim;
    float* key_tile = scores + int64_t(vectors) * tile_cells;
    float* value_tile = key_tile + int64_t(tile_cells) * dim;
    start_block(call, block, state, q);

    int longest = 0;
    for (int r = 0; r < block.rows; r++) longest = larger(longest, call.counts[block.first + r]);
    const int begin = chunk * attention_chunk, end = smaller(longest, begin + attention_chunk);
    const int32_t* cells = call.cells + call.starts[block.first];
    const int64_t key_stride = int64_t(call.kv_heads) * call.dim;
    const int64_t value_stride = int64_t(call.kv_heads) * call.value_dim;
    const bool whole = call.dim % Vec::width == 0 && call.value_dim % Vec::width == 0;
    const bool direct = whole && (sizeof(T) == sizeof(float) || vectors <= few_vectors);

    int visible[attention_rows];   // per row of the block
    const T* key_rows[tile_cells + 8];
    const T* value_rows[tile_cells + 8];
    const float* key_floats[tile_cells + 8];
    const float* value_floats[tile_cells + 8];
    for (int at = begin; at < end; at += tile_cells) {
        const int count = smaller(tile_cells, end - at);
        for (int r = 0; r < block.rows; r++) {
            visible[r] = larger(0, smaller(count, call.counts[block.first + r] - at));
        }
        for (int h = 0; h < block.kv_heads; h++) {
            const T* keys = static_cast<const T*>(call.keys) + int64_t(block.kv_head + h) * call.dim;
            const T* values = static_cast<const T*>(call.values) + int64_t(block.kv_head + h) * call.value_dim;
            for (int j = 0; j < count; j++) {
                const int64_t cell = cells[at + j];
                key_rows[j] = keys + cell * key_stride;
                value_rows[j] = values + cell * value_stride;
                // The tile after this one: the rows may be scattered, the processor cannot foresee them.
                if (at + tile_cells + j < end) {
                    const int64_t next = cells[at + tile_cells + j];
                    prefetch(keys + next * key_stride, call.dim);
                    prefetch(values + next * value_stride, call.value_dim);
                }
            }
            const float* head_q = q + int64_t(h) * vectors * dim;
            const AttentionState head_state = {state.largest + h * vectors, state.sum + h * vectors,
                                               state.values + int64_t(h) * vectors * value_dim};
            // Keys are taken four or eight at a time: the last one stands in for those beyond the end.
            if (direct) {
                for (int j = count; j < tile_cells + 8; j++) key_rows[j] = key_rows[count - 1];
                attend_tile(call, head_q, call.dim, key_rows, value_rows, call.value_dim, visible, vectors,
                            head_state, scores);
            } else {
                unpack_rows(key_rows, count, call.dim, dim, key_tile);
                unpack_rows(value_rows, count, call.value_dim, value_dim, value_tile);
                for (int j = 0; j < tile_cells + 8; j++) {
                    key_floats[j] = key_tile + int64_t(smaller(j, count - 1)) * dim;
                    value_floats[j] = value_tile + int64_t(smaller(j, count - 1)) * value_dim;
                }
                attend_tile(call, head_q, dim, key_floats, value_floats, value_dim, visible, vectors, head_state,
                            scores);
            }
        }
    }
}

void merge_states(const AttentionCall& call, int vectors, AttentionState earlier, AttentionState later) {
    const int value_dim = call.padded_value_dim();
    for (int m = 0; m < vectors; m++) {
        if (later.sum[m] == 0) continue;   // saw nothing of the later chunk
        const float largest = later.largest[m] > earlier.largest[m] ? later.largest[m] : earlier.largest[m];
        float a[Vec::width], b[Vec::width];
        exp(Vec::splat(earlier.largest[m] - largest)).store(a);
        exp(Vec::splat(later.largest[m] - largest)).store(b);
        earlier.largest[m] = largest;
        earlier.sum[m] = earlier.sum[m] * a[0] + later.sum[m] * b[0];
        float* to = earlier.values + int64_t(m) * value_dim;
        const float* from = later.values + int64_t(m) * value_dim;
        for (int d = 0; d < value_dim; d += Vec::width) {
            (Vec::load(to + d) * Vec::splat(a[0]) + Vec::load(from + d) * Vec::splat(b[0])).store(to + d);
        }
    }
}

// What the weighted values of a query vector are to be multiplied by in the end.
float final_share(float largest, float sum, const float* sink) {
    if (!sink) return 1 / sum;
    const float most = *sink > largest ? *sink : largest;
    float a[Vec::width], b[Vec::width];
    exp(Vec::splat(largest - most)).store(a);
    exp(Vec::splat(*sink - most)).store(b);
    return a[0] / (sum * a[0] + b[0]);
}

void finish_block(const AttentionCall& call, const AttentionBlock& block, AttentionState state) {
    const int group = call.group();
    int m = 0;
    for (int kv_head = block.kv_head; kv_head < block.kv_head + block.kv_heads; kv_head++) {
        for (int row = block.first; row < block.first + block.rows; row++) {
            for (int head = kv_head * group; head < (kv_head + 1) * group; head++, m++) {
                const float* sink = call.sinks ? call.sinks + head : nullptr;
                const bool blind = call.counts[row] == 0;   // a row that sees nothing gives zeros
                const Vec share = Vec::splat(blind ? 0 : final_share(state.largest[m], state.sum[m], sink));
                const float* from = state.values + int64_t(m) * call.padded_value_dim();
                float* to = call.out + (int64_t(row) * call.heads + head) * call.value_dim;
                int d = 0;
                for (; d + Vec::width <= call.value_dim; d += Vec::width) (Vec::load(from + d) * share).store(to + d);
                if (d < call.value_dim) store_part(Vec::load(from + d) * share, to + d, call.value_dim - d);
            }
        }
    }
}

void attend_any_chunk(const AttentionCall& call, const AttentionBlock& block, int chunk, AttentionState state,
                      float* scratch) {
    if (call.halves) attend_chunk<half>(call, block, chunk, state, scratch);
    else attend_chunk<float>(call, block, chunk, state, scratch);
}

constexpr AttentionKernels attention_kernels = {attend_any_chunk, merge_states, finish_block};

}  // namespace
}  // namespace puna
