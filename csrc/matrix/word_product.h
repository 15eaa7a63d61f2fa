// Products of F16 and BF16 weights on processors that multiply 16-bit integers twice as fast as floats.
//
// Both sides become integers, 128 columns at a time: a row of weights times a power of two, a token times any factor
// (WordBlock). The factors are such that the squares of a side's integers add up to less than 2^31; so no sum of
// products exceeds 32 bits (Cauchy-Schwarz), and sums are exact. A side's numbers are rounded by at most half a step,
// the step being its norm over the 128 columns divided by at least 23,000, or its largest value divided by at least
// 16,000. F16 numbers down to a sixteenth of a row's norm are still exact.
//
// Integers are computed anew in each call: in memory weights stay as in the file, followed by the powers of two,
// [blocks][R]. Many tokens share the integers of two row groups; few compute them on the way.
#pragma once
#include "matrix/float_product.h"

namespace puna {
namespace {

constexpr int block_pairs = WordBlock::columns / 2;

// The integers of two columns side by side.
template <class Lanes, Layout layout>
PUNA_INLINE typename Lanes::Ints word_pair(const uint8_t* p, bool both, typename Lanes::Floats factor) {
    const auto second = both ? weights_at<Lanes, layout>(p + 2 * Lanes::rows) : Lanes::splat(0.0f);
    return Lanes::words_of(weights_at<Lanes, layout>(p), second, factor);
}

PUNA_INLINE const WordBlock* block_at(const void* x, int64_t step, int64_t index) {
    return reinterpret_cast<const WordBlock*>(static_cast<const char*>(x) + index * step);
}

// The scale of a block's sums.
template <class Lanes>
PUNA_INLINE typename Lanes::Floats add_words(typename Lanes::Ints sum, typename Lanes::Floats worth, const WordBlock* x,
                                             typename Lanes::Floats total) {
    return Lanes::mul_add(Lanes::mul(worth, Lanes::splat(x->scale)), Lanes::to_floats(sum), total);
}

template <class Lanes, Layout layout, int T, int G>
PUNA_INLINE void word_groups(const uint8_t* weights, int64_t stride, int64_t columns, const void* const* x, int64_t step,
                             float* const* y, int64_t row, PrefetchDistance distance) {
    constexpr int pair_bytes = 4 * Lanes::rows;
    const PrefetchDistance ahead = distance.shared_by(G);
    typename Lanes::Floats totals[G][T];
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < T; t++) totals[g][t] = Lanes::splat(0.0f);
    }
    for (int64_t begin = 0; begin < columns; begin += WordBlock::columns) {
        const int64_t index = begin / WordBlock::columns, left = columns - begin;
        const uint8_t* p = weights + begin * 2 * Lanes::rows;
        const WordBlock* a[T];
        typename Lanes::Floats factors[G];
        typename Lanes::Ints sums[G][T];
        for (int t = 0; t < T; t++) a[t] = block_at(x[t], step, index);
        for (int g = 0; g < G; g++) {
            factors[g] = Lanes::load_floats(weights + g * stride + (columns * 2 + index * 4) * Lanes::rows);
            for (int t = 0; t < T; t++) sums[g][t] = Lanes::splat(0);
        }
        const auto add = [&](int pair, bool both) __attribute__((always_inline)) {
            for (int g = 0; g < G; g++) {
                const uint8_t* from = p + g * stride + pair * pair_bytes;
                if (pair % (64 / pair_bytes) == 0) prefetch(from, 1, ahead);
                const auto words = word_pair<Lanes, layout>(from, both, factors[g]);
                for (int t = 0; t < T; t++) {
                    sums[g][t] = Lanes::add_pairs(sums[g][t], words, a[t]->words + 2 * pair);
                    keep(sums[g][t]);
                }
            }
        };
        const int whole = left < WordBlock::columns ? static_cast<int>(left / 2) : block_pairs;
#pragma GCC unroll 2
        for (int pair = 0; pair < whole; pair++) add(pair, true);
        if (whole < block_pairs && left % 2) add(whole, false);
        for (int g = 0; g < G; g++) {
            const auto worth = Lanes::reciprocal(factors[g]);
            for (int t = 0; t < T; t++) totals[g][t] = add_words<Lanes>(sums[g][t], worth, a[t], totals[g][t]);
        }
    }
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < T; t++) Lanes::store(y[t] + row + g * Lanes::rows, totals[g][t]);
    }
}

template <class Lanes, Layout layout, int T>
void word_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                  int64_t step, float* const* y, PrefetchDistance distance) {
    constexpr int G = T == 1 ? 4 : T == 2 ? 2 : 1;
    int64_t group = 0;
    for (; group + G <= groups; group += G, weights += G * stride) {
        word_groups<Lanes, layout, T, G>(weights, stride, columns, x, step, y, group * Lanes::rows, distance);
    }
    for (; group < groups; group++, weights += stride) {
        word_groups<Lanes, layout, T, 1>(weights, stride, columns, x, step, y, group * Lanes::rows, distance);
    }
}

// The integers of a block of G row groups, and their scale.
template <class Lanes, int G>
struct alignas(64) Words {
    int32_t pairs[block_pairs][G][Lanes::rows];
    float worth[G][Lanes::rows];
};

// Adds the products with T tokens to y; the first block overwrites it.
template <class Lanes, int T, int G>
PUNA_INLINE void add_block(const Words<Lanes, G>& words, int pairs, const void* const* x, int64_t step, int64_t index,
                           float* const* y, int64_t row) {
    const WordBlock* a[T];
    typename Lanes::Ints sums[G][T];
    for (int t = 0; t < T; t++) {
        a[t] = block_at(x[t], step, index);
        for (int g = 0; g < G; g++) sums[g][t] = Lanes::splat(0);
    }
    for (int pair = 0; pair < pairs; pair++) {
        typename Lanes::Ints numbers[G];
        for (int g = 0; g < G; g++) numbers[g] = Lanes::load_ints(words.pairs[pair][g]);
        for (int t = 0; t < T; t++) {
            const auto with = Lanes::broadcast4(a[t]->words + 2 * pair);
            for (int g = 0; g < G; g++) {
                sums[g][t] = Lanes::add_pairs(sums[g][t], numbers[g], with);
                keep(sums[g][t]);
            }
        }
    }
    for (int g = 0; g < G; g++) {
        const auto worth = Lanes::load_floats(words.worth[g]);
        for (int t = 0; t < T; t++) {
            float* to = y[t] + row + g * Lanes::rows;
            const auto before = index ? Lanes::load_floats(to) : Lanes::splat(0.0f);
            Lanes::store(to, add_words<Lanes>(sums[g][t], worth, a[t], before));
        }
    }
}

template <class Lanes, Layout layout, int G>
void wide_groups(const uint8_t* weights, int64_t stride, int64_t columns, const void* const* x, int64_t step,
                 float* const* y, int64_t tokens, int64_t row, Words<Lanes, G>& words, PrefetchDistance distance) {
    constexpr int T = Lanes::word_tile;
    for (int64_t begin = 0; begin < columns; begin += WordBlock::columns) {
        const int64_t index = begin / WordBlock::columns, left = columns - begin;
        const int pairs = left < WordBlock::columns ? static_cast<int>((left + 1) / 2) : block_pairs;
        for (int g = 0; g < G; g++) {
            const uint8_t* group = weights + g * stride;
            const auto factor = Lanes::load_floats(group + (columns * 2 + index * 4) * Lanes::rows);
            Lanes::store(words.worth[g], Lanes::reciprocal(factor));
            const uint8_t* p = group + begin * 2 * Lanes::rows;
            for (int pair = 0; pair < pairs; pair++, p += 4 * Lanes::rows) {
                prefetch(p, 4 * Lanes::rows, distance);
                Lanes::store_ints(words.pairs[pair][g], word_pair<Lanes, layout>(p, 2 * pair + 1 < left, factor));
            }
        }
        int64_t t = 0;
        for (; t + T <= tokens; t += T) add_block<Lanes, T, G>(words, pairs, x + t, step, index, y + t, row);
        if constexpr (T > 4) {
            for (; t + 4 <= tokens; t += 4) add_block<Lanes, 4, G>(words, pairs, x + t, step, index, y + t, row);
        }
        if (t + 3 == tokens) add_block<Lanes, 3, G>(words, pairs, x + t, step, index, y + t, row), t += 3;
        for (; t + 2 <= tokens; t += 2) add_block<Lanes, 2, G>(words, pairs, x + t, step, index, y + t, row);
        for (; t < tokens; t++) add_block<Lanes, 1, G>(words, pairs, x + t, step, index, y + t, row);
    }
}

template <class Lanes, Layout layout>
void wide_word_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                       int64_t step, float* const* y, int64_t tokens, uint8_t* room, PrefetchDistance distance) {
    constexpr int G = 2;
    static_assert(sizeof(Words<Lanes, G>) <= wide_room);
    auto& two = *reinterpret_cast<Words<Lanes, G>*>(room);
    auto& one = *reinterpret_cast<Words<Lanes, 1>*>(room);
    if (columns == 0) {
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t g = 0; g < groups; g++) Lanes::store(y[t] + g * Lanes::rows, Lanes::splat(0.0f));
        }
    }
    int64_t group = 0;
    for (; group + G <= groups; group += G, weights += G * stride) {
        wide_groups<Lanes, layout, G>(weights, stride, columns, x, step, y, tokens, group * Lanes::rows, two, distance);
    }
    for (; group < groups; group++, weights += stride) {
        wide_groups<Lanes, layout, 1>(weights, stride, columns, x, step, y, tokens, group * Lanes::rows, one, distance);
    }
}

template <class Lanes, Layout layout, int... T>
void set_word_product(MatrixKernels& kernels, std::integer_sequence<int, T...>) {
    constexpr int l = static_cast<int>(layout);
    kernels.tile[l] = sizeof...(T);
    ((kernels.product[l][T] = word_product<Lanes, layout, T + 1>), ...);
    kernels.wide[l] = wide_word_product<Lanes, layout>;
    kernels.wide_from[l] = sizeof...(T) + 1;
}

// Fills in the table's products of 16-bit floats.
template <class Lanes>
void set_word_products(MatrixKernels& kernels) {
    constexpr auto tiles = std::make_integer_sequence<int, Lanes::word_tile>();
    set_word_product<Lanes, Layout::f16>(kernels, tiles);
    set_word_product<Lanes, Layout::bf16>(kernels, tiles);
}

}  // namespace
}  // namespace puna
