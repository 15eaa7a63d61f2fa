// Products of quantised weights with 8-bit activations, for any layout, instruction set and number of tokens.
//
// An instruction set is a struct `Lanes` (lanes_<set>.h) with
//   rows, tile          R, and the most tokens that are multiplied at a time
//   groups, grouped_tile(T)
//                       row groups in the cache that are multiplied together, with scales of blocks, if there are many
//                       tokens, and by how many of T tokens at a time, if T is a multiple of that
//   signed_bytes        whether products take 8-bit numbers with their sign
//   Bytes, Ints, Floats vectors of 4 R bytes, R 32-bit integers, R floats, and the operations on them
//   Products<bits>      sums of products of numbers of that many bits with activations: a Part takes `chain`
//                       quads before it may overflow
//   Sum, Scale          what Parts times scales are added up in, over a chunk
//   starts              whether Parts may start with a sum of each row, and this is faster than subtracting it later
// Integers are exact whatever their order, and float operations are the same in every tile: a token's results
// do not depend on the tokens beside it.
#pragma once
#include <utility>

#include "matrix/kernels.h"
#include "matrix/quads.h"

namespace puna {
namespace {

template <int n>
using Constant = std::integral_constant<int, n>;

// body(Constant<0>()), ..., body(Constant<n - 1>())
template <class Body, int... i>
PUNA_INLINE void unrolled(std::integer_sequence<int, i...>, Body&& body) {
    (body(Constant<i>()), ...);
}
template <int n, class Body>
PUNA_INLINE void unrolled(Body&& body) {
    unrolled(std::make_integer_sequence<int, n>(), body);
}

// Calls body(0), ..., body(T - 1) with constants: in a loop the compiler would keep per-token values in memory.
template <int T, class Body>
PUNA_INLINE void each_token(Body&& body) {
    unrolled<T>(body);
}

// `locality` is that of __builtin_prefetch: 3 for all caches, 2 for the second level, 0 for the first level alone.
template <int locality = 3>
PUNA_INLINE void prefetch(const uint8_t* from, int bytes, int distance) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + distance + i, 0, locality);
}
PUNA_INLINE void prefetch(const uint8_t* from, int bytes, PrefetchDistance distance) {
    if (distance.once) prefetch<0>(from, bytes, distance.near);
    else if (distance.near) prefetch(from, bytes, distance.near);
    if (distance.far) prefetch<2>(from, bytes, distance.far);
}

template <class Block>
PUNA_INLINE const Block* next_chunk(const Block* a, int64_t step) {
    return reinterpret_cast<const Block*>(reinterpret_cast<const char*>(a) + step);
}

// Scales of two neighbouring groups of columns, [R][2].
template <class Lanes, Layout layout>
PUNA_INLINE const uint8_t* scale_pairs(const uint8_t* chunk, int pair) {
    static_assert(Lanes::rows <= 16);
    static constexpr uint8_t ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                       1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    if constexpr (!format_of(layout).scales) return ones;
    else return chunk + offsets_of(layout, Lanes::rows).scales() + 2 * Lanes::rows * pair;
}

// What the i-th sum of products with numbers of this excess starts with.
template <class Lanes, int excess, int scaled>
PUNA_INLINE typename Lanes::Ints start_of(const ActivationBlock<scaled>& a, int i) {
    constexpr int shift = log2_of(excess) - log2_of(ActivationBlock<scaled>::excess);
    if constexpr (excess == 0) return Lanes::splat(0);
    else if constexpr (shift == 0) return Lanes::splat(a.minus_excess[i]);
    // Shifting the vector is faster than multiplying before.
    else if constexpr (shift > 0) return Lanes::template shift_ints_left<shift>(Lanes::splat(a.minus_excess[i]));
    else return Lanes::template shift_signed_right<-shift>(Lanes::splat(a.minus_excess[i]));
}

// Whether the sums of a super-block's groups start so. Otherwise their excess is subtracted once they are scaled.
template <class Lanes, Layout layout>
constexpr bool starts_with_excess = Lanes::starts && excess<Lanes, layout> != 0 &&
                                    format_of(layout).group == SuperActivations::summed;

// Adds the products of block b of a super-block of G row groups, which are `stride` bytes apart, times their scales, to
// the sums of T tokens; `odd` says whether b is.
template <class Lanes, Layout layout, int T, int G, bool odd>
PUNA_INLINE void add_super_block(const uint8_t* chunk, int64_t stride, int b, const SuperActivations* const* a,
                                 typename Lanes::Sum (*sums)[T], PrefetchDistance distance) {
    constexpr Format f = format_of(layout);
    constexpr Offsets offsets = offsets_of(layout, Lanes::rows);
    using Products = typename Lanes::template Products<f.bits()>;
    constexpr int group = f.group / 4;   // quads that share a scale
    constexpr int chain = Products::chain < group ? Products::chain : group;
    constexpr int slice = offsets.super_block() / 8;
    if constexpr (G == 1) prefetch(chunk + b * slice, slice, distance);
    const uint8_t* low = chunk + offsets.numbers() + b * offsets.low_plane();
    const uint8_t* high = chunk + offsets.high_numbers() + b * (offsets.planes() - offsets.low_plane());
    typename Products::Part part[G][T];
    unrolled<8>([&](auto index) __attribute__((always_inline)) {
        constexpr int i = decltype(index)::value;
        constexpr bool first = i % chain == 0, last = i % chain == chain - 1;
        decltype(Products::prepare(typename Lanes::Bytes())) numbers[G];
        for (int g = 0; g < G; g++) {
            numbers[g] = Products::prepare(quad<Lanes, layout, i>(low + g * stride, high + g * stride));
        }
        each_token<T>([&](auto t) __attribute__((always_inline)) {
            typename Products::Part start;
            if constexpr (first && starts_with_excess<Lanes, layout>) {
                start = Products::from(start_of<Lanes, excess<Lanes, layout>>(*a[t], 2 * b + i / group));
            } else if constexpr (first) {
                start = Products::zero();
            }
            for (int g = 0; g < G; g++) {
                if constexpr (first) part[g][t] = start;
                part[g][t] = Products::add(part[g][t], numbers[g], a[t]->q + 32 * b + 4 * i);
            }
        });
        if constexpr (last) {
            constexpr bool second = f.group == 32 ? odd : i / group % 2;
            for (int g = 0; g < G; g++) {
                const uint8_t* scales = scale_pairs<Lanes, layout>(chunk + g * stride, f.group == 32 ? b / 2 : b);
                const auto scale = Products::template scale<f.signed_scales, second>(scales);
                each_token<T>([&](auto t) __attribute__((always_inline)) {
                    sums[g][t] = Products::add_scaled(sums[g][t], part[g][t], scale);
                });
            }
        }
    });
}

// Sums, over the groups of columns that share a scale, of T tokens' activations times factors: scales or mins, for
// which factors(i) returns the i-th pairs [R][2].
template <class Lanes, int group, bool is_signed, int T, class Factors>
PUNA_INLINE void add_group_sums(Factors&& factors, const SuperActivations* const* a, typename Lanes::Ints* sums) {
    each_token<T>([&](auto t) __attribute__((always_inline)) { sums[t] = Lanes::splat(0); });
    unrolled<128 / group>([&](auto pair) __attribute__((always_inline)) {
        const auto pairs = Lanes::template widen<is_signed>(factors(pair));
        each_token<T>([&](auto t) __attribute__((always_inline)) {
            const int16_t* with = group == 16 ? a[t]->sums16 : a[t]->sums32;
            sums[t] = Lanes::add_pairs(sums[t], pairs, with + 2 * pair);
        });
    });
}

// Subtracts the numbers' excess from the sums of a super-block.
template <class Lanes, Layout layout, int T>
PUNA_INLINE void take_excess(const uint8_t* chunk, const SuperActivations* const* a, typename Lanes::Sum* sums) {
    constexpr int excess = puna::excess<Lanes, layout>;
    if constexpr (excess != 0 && !starts_with_excess<Lanes, layout>) {
        constexpr Format f = format_of(layout);
        typename Lanes::Ints rest[T];
        const auto scales = [&](int pair) __attribute__((always_inline)) {
            return scale_pairs<Lanes, layout>(chunk, pair);
        };
        add_group_sums<Lanes, f.group, f.signed_scales, T>(scales, a, rest);
        each_token<T>([&](auto t) __attribute__((always_inline)) {
            sums[t] = Lanes::sub(sums[t], Lanes::template shift_ints_left<log2_of(excess)>(rest[t]));
        });
    }
}

// Adds a super-block to the totals, once its sums are complete.
template <class Lanes, Layout layout, int T>
PUNA_INLINE void finish_super_block(const uint8_t* chunk, const SuperActivations* const* a,
                                    const typename Lanes::Sum* sums, typename Lanes::Floats* totals) {
    constexpr Format f = format_of(layout);
    typename Lanes::Floats d;
    if constexpr (f.grid == Grid::none) d = Lanes::load_halves(chunk);
    else d = Lanes::load_floats(chunk);
    if constexpr (f.mins) {
        typename Lanes::Ints least[T];
        const auto mins = [&](int pair) __attribute__((always_inline)) {
            return chunk + offsets_of(layout, Lanes::rows).mins() + 2 * Lanes::rows * pair;
        };
        add_group_sums<Lanes, f.group, false, T>(mins, a, least);
        const auto dmin = Lanes::load_halves(chunk + 2 * Lanes::rows);
        each_token<T>([&](auto t) __attribute__((always_inline)) {
            const auto factor = Lanes::mul(dmin, Lanes::splat(a[t]->d[0]));
            totals[t] = Lanes::neg_mul_add(factor, Lanes::to_floats(least[t]), totals[t]);
        });
    }
    each_token<T>([&](auto t) __attribute__((always_inline)) {
        const auto factor = Lanes::mul(d, Lanes::splat(a[t]->d[0]));
        totals[t] = Lanes::mul_add(factor, Lanes::to_floats(sums[t]), totals[t]);
    });
}

// Adds the products of consecutive super-blocks of G row groups to the totals of T tokens, and advances `a` past them.
// Only one group alone is prefetched: several are in the cache.
template <class Lanes, Layout layout, int T, int G>
PUNA_INLINE void add_super_blocks(const uint8_t* chunk, int64_t stride, int64_t count, const SuperActivations** a,
                                  int64_t step, typename Lanes::Floats (*totals)[T], PrefetchDistance distance) {
    for (int64_t i = 0; i < count; i++, chunk += offsets_of(layout, Lanes::rows).super_block()) {
        typename Lanes::Sum sums[G][T];
        for (int g = 0; g < G; g++) {
            for (int t = 0; t < T; t++) sums[g][t] = Lanes::zero_sum();
        }
        // A loop, because the code of eight blocks takes long to compile and much of the processor's cache.
        constexpr int together = format_of(layout).group == 32 ? 2 : 1;   // blocks that share a pair of scales
        for (int b = 0; b < 8; b += together) {
            if constexpr (G > 1) {   // the next tile's activations
                constexpr int bytes = T * sizeof(SuperActivations) / 8 * together;
                prefetch(reinterpret_cast<const uint8_t*>(a[0] + T), bytes, b / together * bytes);
            }
            add_super_block<Lanes, layout, T, G, false>(chunk, stride, b, a, sums, distance);
            if constexpr (together == 2) {
                add_super_block<Lanes, layout, T, G, true>(chunk, stride, b + 1, a, sums, distance);
            }
        }
        for (int g = 0; g < G; g++) {
            take_excess<Lanes, layout, T>(chunk + g * stride, a, sums[g]);
            finish_super_block<Lanes, layout, T>(chunk + g * stride, a, sums[g], totals[g]);
        }
        for (int t = 0; t < T; t++) a[t] = next_chunk(a[t], step);
    }
}

template <class Lanes, Layout layout, int T>
void super_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                   int64_t step, float* const* y, PrefetchDistance distance) {
    for (int64_t group = 0; group < groups; group++, weights += stride) {
        typename Lanes::Floats totals[1][T];
        const SuperActivations* a[T];
        for (int t = 0; t < T; t++) {
            totals[0][t] = Lanes::splat(0.0f);
            a[t] = static_cast<const SuperActivations*>(x[t]);
        }
        add_super_blocks<Lanes, layout, T, 1>(weights, 0, columns / chunk_columns, a, step, totals, distance);
        for (int t = 0; t < T; t++) Lanes::store(y[t] + group * Lanes::rows, totals[0][t]);
    }
}

// Sums of the products of one block of 32 columns, of G row groups whose numbers are `stride` bytes apart, for T
// tokens, without the numbers' excess.
template <class Lanes, Layout layout, int T, int G>
PUNA_INLINE void block_sums(const uint8_t* numbers, int64_t stride, const BlockActivations* const* a, int b,
                            typename Lanes::Ints (*sums)[T]) {
    constexpr Offsets offsets = offsets_of(layout, Lanes::rows);
    constexpr int excess = puna::excess<Lanes, layout>;
    using Products = typename Lanes::template Products<format_of(layout).bits()>;
    constexpr int chain = Products::chain < 8 ? Products::chain : 8;
    typename Products::Part part[G][T];
    each_token<T>([&](auto t) __attribute__((always_inline)) {
        const auto start = start_of<Lanes, excess>(*a[t], b);
        for (int g = 0; g < G; g++) sums[g][t] = start;
    });
    unrolled<8>([&](auto index) __attribute__((always_inline)) {
        constexpr int i = decltype(index)::value;
        constexpr bool first = i % chain == 0, last = i % chain == chain - 1;
        decltype(Products::prepare(typename Lanes::Bytes())) group_numbers[G];
        for (int g = 0; g < G; g++) {
            const uint8_t* low = numbers + g * stride;
            group_numbers[g] = Products::prepare(quad<Lanes, layout, i>(low, low + offsets.low_plane()));
        }
        each_token<T>([&](auto t) __attribute__((always_inline)) {
            for (int g = 0; g < G; g++) {
                if constexpr (first) part[g][t] = Products::from(sums[g][t]);
                part[g][t] = Products::add(part[g][t], group_numbers[g], a[t]->q + 32 * b + 4 * i);
                if constexpr (last) sums[g][t] = Products::to(part[g][t], sums[g][t]);
            }
        });
    });
}

// Adds the products of block b of a chunk to the totals of T tokens.
template <class Lanes, Layout layout, int T>
PUNA_INLINE void finish_block(const uint8_t* factors, const uint8_t* mins, const BlockActivations* const* a, int b,
                              const typename Lanes::Ints* sums, typename Lanes::Floats* totals) {
    const auto d = layout == Layout::mxfp4 ? Lanes::load_bfloats(factors) : Lanes::load_halves(factors);
    typename Lanes::Floats m;
    if constexpr (format_of(layout).mins) {
        m = Lanes::mul(Lanes::load_halves(mins), Lanes::splat(1.0f / BlockActivations::excess));
    }
    each_token<T>([&](auto t) __attribute__((always_inline)) {
        const auto da = Lanes::splat(a[t]->d[b]);
        totals[t] = Lanes::mul_add(Lanes::mul(d, da), Lanes::to_floats(sums[t]), totals[t]);
        if constexpr (format_of(layout).mins) {
            const auto minus_excess = Lanes::splat(static_cast<float>(a[t]->minus_excess[b]));
            totals[t] = Lanes::neg_mul_add(Lanes::mul(m, da), minus_excess, totals[t]);
        }
    });
}

// Multiplies G row groups by T tokens. Only one alone is prefetched: several are in the cache. Results begin at
// y[t] + first_row.
template <class Lanes, Layout layout, int T, int G>
PUNA_INLINE void multiply_groups(const uint8_t* weights, int64_t stride, int64_t columns, const void* const* x,
                                 int64_t step, float* const* y, int64_t first_row, PrefetchDistance distance) {
    constexpr Offsets offsets = offsets_of(layout, Lanes::rows);
    typename Lanes::Floats totals[G][T];
    const BlockActivations* a[T];
    for (int t = 0; t < T; t++) {
        for (int g = 0; g < G; g++) totals[g][t] = Lanes::splat(0.0f);
        a[t] = static_cast<const BlockActivations*>(x[t]);
    }
    const uint8_t* factors = weights;
    for (int64_t k = 0; k < columns; k += chunk_columns) {
        const int blocks = columns - k < chunk_columns ? static_cast<int>((columns - k) / 32) : 8;
        const uint8_t* mins = factors + offsets.factors() * blocks;
        const uint8_t* numbers = factors + offsets.header() * blocks;
        for (int b = 0; b < blocks; b++, numbers += offsets.planes()) {
            if constexpr (G == 1) prefetch(numbers, offsets.planes(), distance);
            typename Lanes::Ints sums[G][T];
            block_sums<Lanes, layout, T, G>(numbers, stride, a, b, sums);
            for (int g = 0; g < G; g++) {
                const int64_t at = g * stride + offsets.factors() * b;
                finish_block<Lanes, layout, T>(factors + at, mins + at, a, b, sums[g], totals[g]);
            }
        }
        factors = numbers;
        for (int t = 0; t < T; t++) a[t] = next_chunk(a[t], step);
    }
    for (int t = 0; t < T; t++) {
        for (int g = 0; g < G; g++) Lanes::store(y[t] + first_row + g * Lanes::rows, totals[g][t]);
    }
}

template <class Lanes, Layout layout, int T>
void block_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                   int64_t step, float* const* y, PrefetchDistance distance) {
    int64_t group = 0;
    // With many tokens, loads of activations would be the limit if each were multiplied once only. But weights that are
    // prefetched, from memory, come faster if they are read from front to back.
    constexpr int together = 2 * T > Lanes::tile ? Lanes::groups : 1, each = Lanes::grouped_tile(T);
    if (together > 1 && T % each == 0 && !distance.near) {
        for (; group + together <= groups; group += together) {
            for (int t = 0; t < T; t += each) {
                multiply_groups<Lanes, layout, each, together>(weights + group * stride, stride, columns, x + t, step,
                                                               y + t, group * Lanes::rows, distance);
            }
        }
    }
    for (; group < groups; group++) {
        multiply_groups<Lanes, layout, T, 1>(weights + group * stride, stride, columns, x, step, y,
                                             group * Lanes::rows, distance);
    }
}

template <class Lanes, Layout layout, int... T>
void set_product(MatrixKernels& kernels, std::integer_sequence<int, T...>) {
    constexpr int l = static_cast<int>(layout);
    kernels.tile[l] = Lanes::tile;
    if constexpr (format_of(layout).super) ((kernels.product[l][T] = super_product<Lanes, layout, T + 1>), ...);
    else ((kernels.product[l][T] = block_product<Lanes, layout, T + 1>), ...);
}

// Calls body(std::integral_constant<Layout, layout>()) for each layout of numbers whose activations have this scaling.
template <Scaling scaling, int index = 0, class Body>
void for_layouts(Body&& body) {
    if constexpr (index < layout_count) {
        constexpr Layout layout = static_cast<Layout>(index);
        constexpr bool numbers = format_of(layout).grid == Grid::none;
        if constexpr (numbers && scaling_of(layout) == scaling) body(std::integral_constant<Layout, layout>());
        for_layouts<scaling, index + 1>(body);
    }
}

// Fills in the table's products of these layouts.
template <class Lanes, Scaling scaling>
void set_products(MatrixKernels& kernels) {
    constexpr auto tiles = std::make_integer_sequence<int, Lanes::tile>();
    for_layouts<scaling>([&](auto layout) { set_product<Lanes, decltype(layout)::value>(kernels, tiles); });
}

}  // namespace
}  // namespace puna
