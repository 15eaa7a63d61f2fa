// Attention in 16-bit integers, which AVX-512 multiplies twice as fast as floats.
//
// Keys and values stored in 16 bits or fewer become integers, as do queries and weights:
//
//                the step
//     a query    its norm / 65,500, or its largest number / 32,767 if that is more
//     a key      its norm / 32,700
//     a value    the cell's largest number / 32,767
//     weights    for each 32 cells, times the largest numbers of their values: their sum / 65,504, or twice that if one
//                is more than half of it
//
// So sums fit 32 bits: a score's by the inequality of Cauchy and Schwarz; those of values because their integers are at
// most 32,767, and the integers of weights add up to less than 65,537. A number is rounded by at most half a step: for
// keys and values of usual distributions, less than storing them as F16 has rounded them. Keys so large that their
// squares exceed a float, which only BF16 can store, give NaN.
//
// A step depends on nothing but the query, the cell, or the weights themselves, and sums are exact in any order. So a
// result has the same bits whatever is computed beside it.
#pragma once
#include <type_traits>

#include "attention/products.h"
#include "attention/tiles.h"
#include "vector/words.h"

namespace puna {
namespace {

constexpr int run_cells = 32, tile_runs = tile_cells / run_cells;

#if !defined(__AVX512F__)
constexpr bool as_words(KVType) { return false; }
#else
// Numbers stored as floats keep their precision.
PUNA_INLINE bool as_words(KVType type) { return type != KVType::f32; }

constexpr float key_limit = 32700, query_limit = 65500, weight_limit = 65504, largest_word = 32767;
constexpr float smallest_scaled = 0x1p-100f;   // smaller numbers count as zero; all halves are larger

// A row of a cache, or of floats padded with zeros to whole vectors, behind which a vector can be read.
struct HalfRow {
    const half* p;

    PUNA_INLINE Vec operator()(int d) const { return Vec::load(p + d); }
    PUNA_INLINE Ints magnitudes(int dim) const { return largest_half_magnitudes(p, dim); }
    static PUNA_INLINE Vec largest(const Ints* magnitudes) { return largest_halves(magnitudes); }
};

template <class Row>
PUNA_INLINE Ints largest_magnitudes(Row row, int dim) {
    Ints most = Ints::splat(0);
    for (int d = 0; d < dim; d += Vec::width) most = max(most, bit_and(bits_of(row(d)), Ints::splat(0x7fffffff)));
    return most;
}

struct BfloatRow {
    const bfloat* p;

    PUNA_INLINE Vec operator()(int d) const { return load_bfloats(p + d); }
    PUNA_INLINE Ints magnitudes(int dim) const { return largest_magnitudes(*this, dim); }
    static PUNA_INLINE Vec largest(const Ints* magnitudes) { return from_bits(largest_of_lanes(magnitudes)); }
};

struct FloatRow {
    const float* p;

    PUNA_INLINE Vec operator()(int d) const { return Vec::load(p + d); }
    PUNA_INLINE Ints magnitudes(int dim) const { return largest_magnitudes(*this, dim); }
    static PUNA_INLINE Vec largest(const Ints* magnitudes) { return from_bits(largest_of_lanes(magnitudes)); }
};

// The sums of squares by lane.
template <class Row>
PUNA_INLINE Vec squares(Row row, int dim) {
    Vec sum = Vec::splat(0), others = sum;   // two, because each addition waits for the one before it
    for (int d = 0; d < dim; d += 2 * Vec::width) {
        const Vec x = row(d);
        sum = fma(x, x, sum);
        if (d + Vec::width >= dim) break;
        const Vec y = row(d + Vec::width);
        others = fma(y, y, others);
    }
    return sum + others;
}

PUNA_INLINE int pairs_of(int dim) { return (dim + 1) / 2; }
PUNA_INLINE int whole_vectors(int count) { return (count + Vec::width - 1) / Vec::width * Vec::width; }

// In keys and queries, a number is paired with the one that is half a block of two vectors, or of what is left, behind
// it. Calls body(first number of a block, half).
template <class Dim, class Body>
PUNA_INLINE void for_blocks_of_pairs(Dim dim, Body body) {
    constexpr int block = 2 * Vec::width;
    int d = 0;
    for (; d + block <= dim; d += block) body(d, Vec::width);
    if (d < dim) body(d, pairs_of(dim - d));
}

// Turns a query, a row of floats, into pairs. `worth`: the unit of its integers.
void query_words(float* q, int dim, float& worth) {
    Vec most = Vec::splat(0), check = most;
    for (int d = 0; d < dim; d += Vec::width) {
        const Vec x = Vec::load(q + d);
        most = max(most, max(x, Vec::splat(0) - x));
        check = fma(x, Vec::splat(0), check);
    }
    worth = max_lane(most) + sum_lanes(check);   // 0 times infinity is NaN
    Vec factor = Vec::splat(0);
    if (worth >= smallest_scaled) {
        const Vec inverse = Vec::splat(1 / worth);
        Vec sum = Vec::splat(0);
        for (int d = 0; d < dim; d += Vec::width) {
            const Vec x = Vec::load(q + d) * inverse;
            sum = fma(x, x, sum);
        }
        const float units = query_limit / __builtin_sqrtf(sum_lanes(sum));
        const float levels = units < largest_word ? units : largest_word;
        factor = Vec::splat(levels / worth);
        worth /= levels;
    }
    for_blocks_of_pairs(dim, [&](int d, int half) {
        pair_of(Vec::load(q + d), factor, Vec::load(q + d + half), factor).store(q + d / 2);
    });
}

// Calls body(dim), with a constant if the number is usual: short loops are then unrolled, 1.15 times as fast.
template <class Body>
PUNA_INLINE void with_usual(int dim, Body body) {
    switch (dim) {
        case 64: return body(std::integral_constant<int, 64>());
        case 128: return body(std::integral_constant<int, 128>());
        case 256: return body(std::integral_constant<int, 256>());
        default: return body(dim);
    }
}

// Prefetches a vector's width of rows from the second-level cache into the first.
template <class Row, class Dim>
PUNA_INLINE void prefetch_rows(const Row* rows, Dim dim) {
    constexpr int line = 64 / sizeof(*rows->p);
    for (int i = 0; i < Vec::width; i++) {
        for (int d = 0; d < dim; d += line) __builtin_prefetch(rows[i].p + d, 0, 3);
    }
}

// for_rows_of_cells, if vectors can be read where the rows are stored.
template <class Row, class Dim, class Measure, class Convert>
PUNA_INLINE void for_stored_rows(const Rows& stored, Dim dim, const int32_t* cells, Range used, Measure measure,
                                 Convert convert) {
    const int begin = used.begin / Vec::width * Vec::width, end = whole_vectors(used.end);
    Row rows[tile_cells];
    for (int j = begin; j < end; j++) {
        rows[j] = {reinterpret_cast<decltype(Row::p)>(stored.row(cell_at(cells, used, j)))};
    }
    for (int j = begin; j < end; j += Vec::width) {
        if (j + Vec::width < end) prefetch_rows(rows + j + Vec::width, dim);
        measure(rows + j, dim, j);
    }
    for (int j = begin; j < end; j += Vec::width) convert(rows + j, dim, j);
}

// Calls measure(rows, dim, first cell), then convert(rows, dim, first cell), for each vector's width of a tile's cells
// with the rows of those in `used`. All that can be are measured first, since converting waits for roots and quotients.
template <class Measure, class Convert>
PUNA_INLINE void for_rows_of_cells(const Rows& stored, bool direct, const int32_t* cells, Range used, float* floats,
                                   Measure measure, Convert convert) {
    with_usual(stored.dim, [&](auto dim) __attribute__((always_inline)) {
        if (direct && stored.type == KVType::f16) {
            return for_stored_rows<HalfRow>(stored, dim, cells, used, measure, convert);
        }
        if (direct && stored.type == KVType::bf16) {
            return for_stored_rows<BfloatRow>(stored, dim, cells, used, measure, convert);
        }
        FloatRow rows[Vec::width];
        for (int i = 0; i < Vec::width; i++) rows[i] = {floats + i * stored.padded};
        for (int j = used.begin / Vec::width * Vec::width; j < used.end; j += Vec::width) {
            int32_t taken[Vec::width];
            for (int i = 0; i < Vec::width; i++) taken[i] = cell_at(cells, used, j + i);
            unpack_cells(stored, taken, Vec::width, floats);
            measure(rows, dim, j);
            convert(rows, dim, j);
        }
    });
}

// The factors that make integers of a vector's width of keys, and the units of these.
template <class Row, class Dim>
PUNA_INLINE void measure_keys(const Row* rows, Dim dim, float* factors, float* worth) {
    Vec sums[Vec::width];
    for (int i = 0; i < Vec::width; i++) sums[i] = squares(rows[i], dim);
    const Vec norms = sqrt(sums_of_lanes(sums)), zero = Vec::splat(0);
    pick(greater(norms, Vec::splat(smallest_scaled)), Vec::splat(key_limit) / norms, zero).store(factors);
    (norms * Vec::splat(1 / key_limit)).store(worth);
}

// Transposes the keys of the tile's cells in `used`: pairs [pairs_of(dim), tile_cells], and worth [tile_cells], the units
// of their integers. `few_keys` has room for a vector's width of rows, and a vector.
void gather_key_words(const Rows& keys, const int32_t* cells, Range used, CellPrefetcher& next_tile, float* few_keys,
                      float* pairs, float* worth) {
    const bool direct = keys.dim % (2 * Vec::width) == 0;
    alignas(64) float factors[tile_cells];
    CellPrefetcher next = next_tile;   // a copy that no store could change
    const int blocks = (keys.dim + 2 * Vec::width - 1) / (2 * Vec::width);
    const int lines = next.lines_of_gathering(tile_cells / 4 * blocks);
    for_rows_of_cells(
        keys, direct, cells, used, few_keys,
        [&](const auto* rows, auto dim, int j) __attribute__((always_inline)) {
            measure_keys(rows, dim, factors + j, worth + j);
        },
        [&](const auto* rows, auto dim, int j) __attribute__((always_inline)) {
            for_blocks_of_pairs(dim, [&](int d, int half) __attribute__((always_inline)) {
                __m512 block[Vec::width];
#pragma GCC unroll 16
                for (int i = 0; i < Vec::width; i++) {
                    if (i % 4 == 0) next.prefetch(lines);
                    const Vec factor = Vec::splat(factors[j + i]);
                    block[i] = from_bits(pair_of(rows[i](d), factor, rows[i](d + half), factor)).v;
                }
                transpose(block, pairs + j + int64_t(d / 2) * tile_cells, tile_cells);
            });
        });
    next_tile = next;
}

// The factors that make integers of a vector's width of values, and the largest number of each cell.
template <class Row, class Dim>
PUNA_INLINE void measure_values(const Row* rows, Dim dim, float* factors, float* largest) {
    Ints magnitudes[Vec::width];
    for (int i = 0; i < Vec::width; i++) magnitudes[i] = rows[i].magnitudes(dim);
    const Vec most = Row::largest(magnitudes), zero = Vec::splat(0);
    pick(greater(most, Vec::splat(smallest_scaled)), Vec::splat(largest_word) / most, zero).store(factors);
    most.store(largest);
}

// The values of the tile's cells in `used`: pairs of rows [tile_cells / 2, padded_value_dim], and largest [tile_cells],
// the largest number of each cell. `few_values` has room for a vector's width of rows.
void gather_value_words(const Rows& values, const int32_t* cells, Range used, CellPrefetcher& next_tile,
                        float* few_values, float* pairs, float* largest) {
    const bool direct = values.dim % 16 == 0;
    alignas(64) float factors[tile_cells];
    CellPrefetcher next = next_tile;
    const int lines = next.lines_of_gathering(tile_cells / 2);
    const int64_t stride = values.padded;
    for_rows_of_cells(
        values, direct, cells, used, few_values,
        [&](const auto* rows, auto dim, int j) __attribute__((always_inline)) {
            measure_values(rows, dim, factors + j, largest + j);
        },
        [&](const auto* rows, auto dim, int j) __attribute__((always_inline)) {
            float* to = pairs + j / 2 * stride;
#pragma GCC unroll 2
            for (int i = 0; i < Vec::width; i += 2, to += stride) {
                next.prefetch(lines);
                const Vec first = Vec::splat(factors[j + i]), second = Vec::splat(factors[j + i + 1]);
                for (int d = 0; d < dim; d += Vec::width) {
                    pair_of(rows[i](d), first, rows[i + 1](d), second).store(to + d);
                }
            }
        });
    next_tile = next;
}

// The lanes, from cell `first` on, that are seen; zero in the others.
PUNA_INLINE Vec only_seen(Vec x, int first, Range seen) {
    if (seen.begin <= first && first + Vec::width <= seen.end) return x;
    const int begin = max(0, min(Vec::width, seen.begin - first)), end = max(0, min(Vec::width, seen.end - first));
    return pick(((1u << end) - 1) & ~((1u << begin) - 1), x, Vec::splat(0));
}

// The weights of a query vector for a tile.
struct TileWeights {
    float* weights;   // [tile_cells]
    Range seen;       // cells that the vector sees
};
constexpr int weighed_together = Vec::width / tile_runs;

// Turns the weights of up to weighed_together query vectors, times the largest numbers of the cells' values, into words,
// each run in the first half of its place. Weights of cells that are not seen are zero, whatever is stored there. `worth`
// [count, tile_runs] becomes the units of the runs' products with values. at(i) gives the weights of a vector.
template <class At>
PUNA_INLINE void weight_words(int count, const float* largest, float* worth, At at) {
    Vec of_runs[Vec::width];
    Ints most[Vec::width];
    for (int i = 0; i < count; i++) {
        const TileWeights of = at(i);
#pragma GCC unroll 2
        for (int run = 0; run < tile_runs; run++) {
            Vec sum = Vec::splat(0);
            Ints top = Ints::splat(0);
#pragma GCC unroll 2
            for (int v = 0; v < run_cells / Vec::width; v++) {
                const int j = run * run_cells + v * Vec::width;
                const Vec x = only_seen(Vec::load(of.weights + j) * Vec::load(largest + j), j, of.seen);
                x.store(of.weights + j);
                sum = v ? sum + x : x;
                top = max(top, bits_of(x));   // no weight is negative
            }
            of_runs[i * tile_runs + run] = sum, most[i * tile_runs + run] = top;
        }
    }
    for (int i = count * tile_runs; i < Vec::width; i++) of_runs[i] = Vec::splat(0), most[i] = Ints::splat(0);
    const Vec sums = sums_of_lanes(of_runs);
    const uint32_t large = greater(from_bits(largest_of_lanes(most)), sums * Vec::splat(0.5f));
    const Vec levels = pick(large, Vec::splat(weight_limit / 2), Vec::splat(weight_limit));
    constexpr float unit = 1 / (weight_limit * largest_word);
    float factors[Vec::width], units[Vec::width];
    pick(greater(sums, Vec::splat(smallest_scaled)), levels / sums, Vec::splat(0)).store(factors);
    (sums * pick(large, Vec::splat(2 * unit), Vec::splat(unit))).store(units);
    for (int i = 0; i < count; i++) {
        float* weights = at(i).weights;
#pragma GCC unroll 2
        for (int run = 0; run < tile_runs; run++, weights += run_cells) {
            worth[i * tile_runs + run] = units[i * tile_runs + run];
            const Vec factor = Vec::splat(factors[i * tile_runs + run]);
#pragma GCC unroll 1
            for (int j = 0; j < run_cells; j += 2 * Vec::width) {
                store_words(Vec::load(weights + j) * factor, Vec::load(weights + j + Vec::width) * factor,
                            weights + j / 2);
            }
        }
    }
}
#endif

}  // namespace
}  // namespace puna
