// Products of a few query vectors with a tile of keys, or of their weights with a tile of values. Compiled once per
// instruction set.
#pragma once
#include "attention/attention.h"
#include "attention/products.h"
#include "attention/tiles.h"
#include "attention/words.h"

namespace puna {
namespace {

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

// Query vectors of one head that are computed with a tile, and the cells of it that they see, counted from its first.
struct TileVectors {
    const Range* rows;   // what each row of the block sees of the chunk
    int tile;            // the tile's first cell, counted likewise
    int first, count;    // vectors of the block
    int group;           // of these in a row

    PUNA_INLINE Range seen_by(int vector) const { return in_tile(rows[(first + vector) / group]); }
    // From the first cell that one of some vectors sees to the last.
    PUNA_INLINE Range seen_by_any(int vector, int taken) const {
        Range all = {tile_cells, 0};
        for (int row = (first + vector) / group; row <= (first + vector + taken - 1) / group; row++) {
            all = all.with(in_tile(rows[row]));
        }
        return all;
    }

private:
    PUNA_INLINE Range in_tile(Range seen) const {
        return {max(0, seen.begin - tile), min(tile_cells, seen.end - tile)};
    }
};

// Calls use(first, count, cells) for each few query vectors that are multiplied together and see any cells of a tile.
template <class Use>
PUNA_INLINE void for_few_vectors(const TileVectors& vectors, Use use) {
    for (int m = 0; m < vectors.count; m += max_rows) {
        const int taken = min(max_rows, vectors.count - m);
        const Range all = vectors.seen_by_any(m, taken);
        if (!all.empty()) use(m, taken, all);
    }
}

// Scores of vectors for a tile: keys transposed [dim, tile_cells].
void score_tile(const AttentionCall& call, const TileVectors& vectors, const float* q, const float* keys,
                CellPrefetcher& next_tile, float* scores) {
    const int q_stride = call.padded_dim();
    for_few_vectors(vectors, [&](int m, int taken, Range cells) {
        const int begin = cells.begin / Vec::width * Vec::width;
        multiply_and_prefetch<false>(vectors.count, next_tile, taken, (cells.end - begin + Vec::width - 1) / Vec::width,
                                     q + int64_t(m) * q_stride, q_stride, keys + begin, tile_cells, call.dim,
                                     scores + int64_t(m) * attention_score_stride + begin, attention_score_stride);
    });
}

// Adds a tile of values [tile_cells, padded_value_dim], weighted, to the values of vectors.
void add_value_tile(const AttentionCall& call, const TileVectors& vectors, const float* weights, const float* values,
                    CellPrefetcher& next_tile, float* to) {
    const int stride = call.padded_value_dim();
    const int value_vectors = (call.value_dim + Vec::width - 1) / Vec::width;
    for (int m = 0, taken; m < vectors.count; m += taken) {
        // Only cells that all rows see: beyond them, a NaN times a weight of zero would spoil a row.
        const Range cells = vectors.seen_by(m);
        for (taken = 1; taken < max_rows && m + taken < vectors.count && vectors.seen_by(m + taken) == cells;) taken++;
        if (cells.empty()) continue;
        multiply_and_prefetch<true>(vectors.count, next_tile, taken, value_vectors,
                                    weights + int64_t(m) * attention_score_stride + cells.begin, attention_score_stride,
                                    values + int64_t(cells.begin) * stride, stride, cells.end - cells.begin,
                                    to + int64_t(m) * stride, stride);
    }
}

#if defined(__AVX512F__)
// Lines to prefetch before and after each few vectors that are multiplied as integers.
PUNA_INLINE int lines_of_words(const TileVectors& vectors, const CellPrefetcher& next_tile) {
    return next_tile.lines_of_multiplying(2 * ((vectors.count + max_rows - 1) / max_rows));
}

// The same as score_tile, of integers: queries and keys [pairs_of(dim), tile_cells] in the units `q_worth` and
// `key_worth` [tile_cells].
void score_words(const AttentionCall& call, const TileVectors& vectors, const float* q, const float* q_worth,
                 const float* keys, const float* key_worth, CellPrefetcher& next_tile, float* scores) {
    const int q_stride = call.padded_dim();
    const int lines = lines_of_words(vectors, next_tile);
    for_few_vectors(vectors, [&](int m, int taken, Range cells) {
        next_tile.prefetch(lines);
        const int begin = cells.begin / Vec::width * Vec::width;
        multiply_pairs(taken, (cells.end - begin + Vec::width - 1) / Vec::width, q + int64_t(m) * q_stride, q_stride,
                       q_worth + m, keys + begin, tile_cells, key_worth + begin, pairs_of(call.dim),
                       scores + int64_t(m) * attention_score_stride + begin, attention_score_stride);
        next_tile.prefetch(lines);
    });
}

// The same as add_value_tile, of integers: values [tile_cells / 2, padded_value_dim]. Weights become words first, whose
// units go to `weight_worth` [vectors, tile_runs]; `largest` [tile_cells] are the largest numbers of the cells' values.
void add_value_words(const AttentionCall& call, const TileVectors& vectors, float* weights, float* weight_worth,
                     const float* values, const float* largest, CellPrefetcher& next_tile, float* to) {
    const int stride = call.padded_value_dim(), value_vectors = (call.value_dim + Vec::width - 1) / Vec::width;
    for (int first = 0; first < vectors.count; first += weighed_together) {
        weight_words(min(weighed_together, vectors.count - first), largest, weight_worth + first * tile_runs,
                     [&](int i) __attribute__((always_inline)) {
                         const int m = first + i;
                         return TileWeights{weights + int64_t(m) * attention_score_stride, vectors.seen_by(m)};
                     });
    }
    const int lines = lines_of_words(vectors, next_tile);
    for (int m = 0; m < vectors.count; m += max_rows) {
        next_tile.prefetch(lines);
        add_runs<tile_runs, run_cells / 2>(
            min(max_rows, vectors.count - m), value_vectors, weights + int64_t(m) * attention_score_stride,
            attention_score_stride, weight_worth + m * tile_runs, tile_runs, values, stride,
            to + int64_t(m) * stride, stride);
        next_tile.prefetch(lines);
    }
}
#endif

}  // namespace
}  // namespace puna
