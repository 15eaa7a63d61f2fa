// Super-blocks with AMX: 16 tokens times 16 rows times 64 columns in an instruction.
//
// What would stop tiles from adding up a whole chunk of 256 columns is the scale of each 16 or 32: so numbers
// are multiplied with their scales beforehand, once per chunk for all tokens. The products have more than 8
// bits and are split into two planes of bytes, which tiles multiply one after the other:
//   sum = sum over plane 0 + 2^split * sum over plane 1
// All of it is integers: the sums are exactly those of the AVX-512 kernels that serve fewer tokens.
#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx512.h"
#include "matrix/quantized_product.h"
#include "matrix/tiles_amx.h"

namespace puna {
namespace {

constexpr int R = Avx512::rows;
constexpr int most_groups = 2;   // row groups that share a load of tokens

// Small unsigned numbers times half a scale's bits still fit a byte: the scale is what is split. Others are
// multiplied to 16 bits, and the product is split.
template <Layout layout>
constexpr bool split_scales = !format_of(layout).signed_scales;
template <Layout layout>
constexpr int planes = layout == Layout::q2_k ? 1 : 2;   // 3 * 15 fits a byte as it is
template <Layout layout>
constexpr int split = split_scales<layout> ? 3 : 6;

struct alignas(64) Buffers {
    uint8_t numbers[most_groups][2][64][4 * R];   // [group][plane][quad]
    int32_t sums[most_groups][2][wide_tile][R];
    int8_t tokens[wide_tile][chunk_columns];
    float totals[most_groups][token_block][R];    // results lie far apart: they are written once
};

// Both halves of a 32-bit lane.
PUNA_INLINE __m512i doubled(__m512i low) { return _mm512_or_si512(_mm512_slli_epi32(low, 16), low); }

// The planes of block b, whose number is even or odd as `parity` says.
template <Layout layout, int parity>
PUNA_INLINE void unpack_block(const uint8_t* chunk, int b, uint8_t (*numbers)[64][4 * R]) {
    constexpr Offsets offsets = offsets_of(layout, R);
    constexpr int group = format_of(layout).group, excess = puna::excess<Avx512, layout>;
    constexpr bool signed_scales = format_of(layout).signed_scales, split_scales = puna::split_scales<layout>;
    constexpr int planes = puna::planes<layout>, split = puna::split<layout>;
    const uint8_t* low = chunk + offsets.numbers() + b * offsets.low_plane();
    const uint8_t* high = chunk + offsets.high_numbers() + b * (offsets.planes() - offsets.low_plane());
    const uint8_t* scales = chunk + offsets.scales() + (group == 32 ? b / 2 : b) * 2 * R;
    // Memory works on the next chunk while tiles multiply this one.
    prefetch(chunk + b * (offsets.super_block() / 8), offsets.super_block() / 8, offsets.super_block());
    unrolled<8>([&](auto index) __attribute__((always_inline)) {
        constexpr int i = decltype(index)::value, odd = group == 32 ? parity : i / 4;
        const __m512i q = quad<Avx512, layout, i>(low, high);
        const __m512i scale = Avx512::factors32<signed_scales, odd>(scales);
        uint8_t(*plane0)[4 * R] = numbers[0] + 8 * b + i;
        uint8_t(*plane1)[4 * R] = numbers[1] + 8 * b + i;
        if constexpr (planes == 1) {
            _mm512_store_si512(plane0, _mm512_mullo_epi16(q, doubled(scale)));
        } else if constexpr (split_scales) {   // no product carries into the neighbouring byte
            const __m512i below = _mm512_and_si512(scale, _mm512_set1_epi32((1 << split) - 1));
            _mm512_store_si512(plane0, _mm512_mullo_epi16(q, doubled(below)));
            _mm512_store_si512(plane1, _mm512_mullo_epi16(q, doubled(_mm512_srli_epi32(scale, split))));
        } else {
            const __m512i bytes = _mm512_set1_epi16(255), too_large = _mm512_set1_epi16(excess);
            const __m512i scale16 = doubled(_mm512_and_si512(scale, _mm512_set1_epi32(0xffff)));
            const __m512i even = _mm512_sub_epi16(_mm512_and_si512(q, bytes), too_large);
            const __m512i uneven = _mm512_sub_epi16(_mm512_srli_epi16(q, 8), too_large);
            const __m512i p = _mm512_mullo_epi16(even, scale16), r = _mm512_mullo_epi16(uneven, scale16);
            const __m512i below = _mm512_set1_epi16((1 << split) - 1);
            const auto together = [](__m512i a, __m512i b) { return _mm512_or_si512(a, _mm512_slli_epi16(b, 8)); };
            _mm512_store_si512(plane0, together(_mm512_and_si512(p, below), _mm512_and_si512(r, below)));
            _mm512_store_si512(plane1, together(_mm512_and_si512(_mm512_srai_epi16(p, split), bytes),
                                                _mm512_srai_epi16(r, split)));
        }
    });
}

// Tile registers: sums of (group, plane) in 0 to 3, tokens in 4, numbers in 5 and 6.
constexpr int tokens_tile = 4, numbers_tile = 5;

// Sums of 16 tokens over a chunk for G row groups.
template <Layout layout, int G>
PUNA_INLINE void multiply_chunk(const TokenRows& x, Buffers& buffers) {
    constexpr int products = G * planes<layout>;
    unrolled<products>([&](auto p) __attribute__((always_inline)) { zero_tile<decltype(p)::value>(); });
    for (int step = 0; step < 4; step++) {
        load_tile<tokens_tile>(x.first + 64 * step, x.stride);
        unrolled<products>([&](auto index) __attribute__((always_inline)) {
            constexpr int p = decltype(index)::value, n = numbers_tile + p % 2;
            load_tile<n>(buffers.numbers[p / planes<layout>][p % planes<layout>][16 * step], 4 * R);
            multiply_tiles<!split_scales<layout>, p, tokens_tile, n>();
        });
    }
    unrolled<products>([&](auto index) __attribute__((always_inline)) {
        constexpr int p = decltype(index)::value;
        store_tile<p>(buffers.sums[p / planes<layout>][p % planes<layout>], 4 * R);
    });
}

// Adds the sums of one row group and `count` tokens, at most 16, to their totals.
template <Layout layout>
PUNA_INLINE void finish_chunk(const uint8_t* chunk, const void* const* x, int64_t k, int count,
                              const int32_t (*sums)[wide_tile][R], float (*to)[R]) {
    for (int from = 0; from < count; from += 8) {
        const ActivationBlock* a[8];
        __m512i sum[8];
        __m512 totals[8];
        for (int t = 0; t < 8; t++) {
            const int at = from + t < count ? from + t : count - 1;
            a[t] = static_cast<const ActivationBlock*>(x[at]) + k;
            totals[t] = k == 0 ? _mm512_setzero_ps() : _mm512_load_ps(to[at]);
            sum[t] = _mm512_load_si512(sums[0][at]);
            if constexpr (planes<layout> == 2) {
                const __m512i above = _mm512_slli_epi32(_mm512_load_si512(sums[1][at]), split<layout>);
                sum[t] = _mm512_add_epi32(sum[t], above);
            }
        }
        finish_super_block<Avx512Exact, layout, 8>(chunk, a, sum, totals);
        for (int t = 0; t < 8 && from + t < count; t++) _mm512_store_ps(to[from + t], totals[t]);
    }
}

template <Layout layout, int G>
PUNA_INLINE void some_groups(const uint8_t* weights, int64_t stride, int64_t group, int64_t columns,
                             const void* const* x, float* const* y, int64_t tokens, Buffers& buffers) {
    constexpr int bytes = offsets_of(layout, R).super_block();
    weights += group * stride;
    for (int64_t k = 0; k < columns / chunk_columns; k++, weights += bytes) {
        for (int g = 0; g < G; g++) {
            for (int b = 0; b < 8; b += 2) {
                unpack_block<layout, 0>(weights + g * stride, b, buffers.numbers[g]);
                unpack_block<layout, 1>(weights + g * stride, b + 1, buffers.numbers[g]);
            }
        }
        for (int64_t t = 0; t < tokens; t += wide_tile) {
            const int count = tokens - t < wide_tile ? static_cast<int>(tokens - t) : wide_tile;
            multiply_chunk<layout, G>(TokenRows(x + t, k, count, buffers.tokens), buffers);
            for (int g = 0; g < G; g++) {
                finish_chunk<layout>(weights + g * stride, x + t, k, count, buffers.sums[g], buffers.totals[g] + t);
            }
        }
    }
    for (int64_t t = 0; t < tokens; t++) {
        for (int g = 0; g < G; g++) _mm512_storeu_ps(y[t] + (group + g) * R, _mm512_load_ps(buffers.totals[g][t]));
    }
}

template <Layout layout>
void wide_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                  float* const* y, int64_t tokens) {
    TileShapes shapes;
    for (int tile = 0; tile < 7; tile++) shapes.set(tile, 16, 64);
    const UseTiles use(shapes);
    Buffers buffers;
    int64_t group = 0;
    for (; group + most_groups <= groups; group += most_groups) {
        some_groups<layout, most_groups>(weights, stride, group, columns, x, y, tokens, buffers);
    }
    if (group < groups) some_groups<layout, 1>(weights, stride, group, columns, x, y, tokens, buffers);
}

}  // namespace

void add_super_blocks_amx(MatrixKernels& kernels) {
    set_products<Avx512Exact, Scaling::per_256>(kernels);
    for_layouts<Scaling::per_256>([&](auto each) {
        constexpr Layout layout = decltype(each)::value;
        kernels.wide[static_cast<int>(layout)] = wide_product<layout>;
    });
}

}  // namespace puna
