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
// Calls use(m, n, (a @ b)[m, n]) for M rows and N vectors of columns; a [M, depth] and b [depth, N * width] hold pairs of
// 16-bit integers in the place of floats. Sums must fit 32 bits.
template <int M, int N, class Use>
void multiply_pairs_part(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth, Use use) {
    // Loops that are not unrolled would leave the sums in memory.
    Ints sums[M][N];
#pragma GCC unroll 6
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[m][n] = Ints::splat(0);
    }
    for (int k = 0; k < depth; k++) {
        Ints row[N];
        for (int n = 0; n < N; n++) row[n] = Ints::load(b + n * Vec::width);
        b += b_stride;
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
#pragma GCC unroll 6
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) use(m, n, to_floats(sums[m][n]));
    }
}

// The same for up to max_rows rows and any number of vectors of columns.
template <class Use>
void multiply_pairs(int rows, int vectors, const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth,
                    Use use) {
    for_parts(rows, vectors, [&](auto m, auto columns, int n) {
        const auto use_part = [&](int row, int column, Vec sum) __attribute__((always_inline)) {
            use(row, n + column, sum);
        };
        multiply_pairs_part<decltype(m)::value, decltype(columns)::value>(a, a_stride, b + n * Vec::width, b_stride,
                                                                          depth, use_part);
    });
}
#endif

}  // namespace
}  // namespace puna
