// Small matrix products held in registers. Compiled once per instruction set.
//
// Every number of a result is summed in a fixed order, whatever is computed with it.
#pragma once
#include <cstdint>

#include "vector/vector.h"
#include "vector/words.h"

namespace puna {
namespace {

// The part of a product held in registers: rows, and vectors of columns. Loads must not delay the additions.
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

// Calls body(Count<count>()) for a count from 1 to Max that is known only at run time.
template <int Max, class Body>
PUNA_INLINE void with_count(int count, Body&& body) {
    if constexpr (Max > 1) {
        if (count < Max) return with_count<Max - 1>(count, body);
    }
    body(Count<Max>());
}

// c[m] += a[m] @ b for M rows and N vectors of columns; a [M, depth], b [depth, N * width]. Without `adds`, =.
template <int M, int N, bool adds>
void multiply_part(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth, float* c,
                   int64_t c_stride) {
    Vec sums[M][N];
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) sums[m][n] = adds ? Vec::load(c + m * c_stride + n * Vec::width) : Vec::splat(0);
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

// Calls part(count of rows, count of vectors, vectors before it) for up to max_rows rows and any number of vectors of
// columns.
template <class Part>
PUNA_INLINE void for_parts(int rows, int vectors, Part part) {
    with_count<max_rows>(rows, [&](auto m) {
        for (int n = 0; n < vectors; n += max_columns) {
            with_count<max_columns>(vectors - n < max_columns ? vectors - n : max_columns,
                                    [&](auto columns) { part(m, columns, n); });
        }
    });
}

// As multiply_part, for up to max_rows rows and any number of vectors of columns.
template <bool adds>
void multiply(int rows, int vectors, const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth,
              float* c, int64_t c_stride) {
    for_parts(rows, vectors, [&](auto m, auto columns, int n) {
        multiply_part<decltype(m)::value, decltype(columns)::value, adds>(
            a, a_stride, b + n * Vec::width, b_stride, depth, c + n * Vec::width, c_stride);
    });
}

#if defined(__AVX512F__)
// Sums of the products of `depth` pairs of 16-bit integers, in the place of floats, for M rows of a and N vectors of
// columns of b. Sums must fit 32 bits.
template <int M, int N>
PUNA_INLINE void sum_pairs(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth,
                           Ints (&sums)[M][N]) {
    // Loops that are not unrolled would leave the sums in memory.
#pragma GCC unroll 6
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[m][n] = Ints::splat(0);
    }
#pragma GCC unroll 1
    for (int k = 0; k < depth; k++, b += b_stride) {
        Ints row[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) row[n] = Ints::load(b + n * Vec::width);
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            const Ints factor = Ints::splat_pair(a + m * a_stride + k);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                sums[m][n] = add_products(sums[m][n], row[n], factor);
                keep(sums[m][n].v);
            }
        }
    }
}

// c[m, n] = (a @ b)[m, n] * a_worth[m] * b_worth[n] for M rows and N vectors of columns; a [M, depth] and b
// [depth, N * width] hold pairs of 16-bit integers.
template <int M, int N>
PUNA_NOINLINE void multiply_pairs_part(const float* a, int64_t a_stride, const float* a_worth, const float* b,
                                       int64_t b_stride, const float* b_worth, int depth, float* c, int64_t c_stride) {
    Ints sums[M][N];
    sum_pairs(a, a_stride, b, b_stride, depth, sums);
    Vec units[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) units[n] = Vec::load(b_worth + n * Vec::width);
#pragma GCC unroll 6
    for (int m = 0; m < M; m++) {
        const Vec unit = Vec::splat(a_worth[m]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            (to_floats(sums[m][n]) * (units[n] * unit)).store(c + m * c_stride + n * Vec::width);
        }
    }
}

// The same for up to max_rows rows and any number of vectors of columns.
PUNA_INLINE void multiply_pairs(int rows, int vectors, const float* a, int64_t a_stride, const float* a_worth,
                                const float* b, int64_t b_stride, const float* b_worth, int depth, float* c,
                                int64_t c_stride) {
    for_parts(rows, vectors, [&](auto m, auto columns, int n) {
        multiply_pairs_part<decltype(m)::value, decltype(columns)::value>(
            a, a_stride, a_worth, b + n * Vec::width, b_stride, b_worth + n * Vec::width, depth, c + n * Vec::width,
            c_stride);
    });
}

// c[m, n] += the sum over runs of worth[m, run] * (a @ b)[m, n], for M rows and N vectors of columns, where a run is
// `depth` pairs of a's row, which take half of its place, and as many rows of b.
template <int runs, int depth, int M, int N>
PUNA_NOINLINE void add_runs_part(const float* a, int64_t a_stride, const float* worth, int64_t worth_stride,
                                 const float* b, int64_t b_stride, float* c, int64_t c_stride) {
    Vec totals[M][N];
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) totals[m][n] = Vec::load(c + m * c_stride + n * Vec::width);
    }
    for (int run = 0, end = unknown(runs); run < end; run++, a += 2 * depth, b += depth * b_stride) {
        Ints sums[M][N];
        sum_pairs(a, a_stride, b, b_stride, depth, sums);
        for (int m = 0; m < M; m++) {
            const Vec unit = Vec::splat(worth[m * worth_stride + run]);
            for (int n = 0; n < N; n++) totals[m][n] = fma(to_floats(sums[m][n]), unit, totals[m][n]);
        }
    }
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) totals[m][n].store(c + m * c_stride + n * Vec::width);
    }
}

// The same for up to max_rows rows and any number of vectors of columns.
template <int runs, int depth>
void add_runs(int rows, int vectors, const float* a, int64_t a_stride, const float* worth, int64_t worth_stride,
              const float* b, int64_t b_stride, float* c, int64_t c_stride) {
    with_count<max_rows>(rows, [&](auto m) {
        constexpr int columns = decltype(m)::value > 3 ? 2 : max_columns;   // sums and totals must fit the registers
        for (int n = 0; n < vectors; n += columns) {
            with_count<columns>(vectors - n < columns ? vectors - n : columns, [&](auto count) {
                add_runs_part<runs, depth, decltype(m)::value, decltype(count)::value>(
                    a, a_stride, worth, worth_stride, b + n * Vec::width, b_stride, c + n * Vec::width, c_stride);
            });
        }
    });
}
#endif

}  // namespace
}  // namespace puna
