// Q4_K, Q5_K and Q6_K with AVX-512 VNNI, 16 rows at a time.
//
// dpbusd multiplies four 4-, 5- or 6-bit numbers with activations and adds them to 32 bits. A block's sum (at
// most 63 * 127 * 32, exact as a float) times its scale is added up in float over the chunk, in block order.
#include <utility>

#include "matrix/kernels_avx512.h"
#include "matrix/tile_avx512.h"

namespace puna {
namespace {

template <class L>
constexpr bool is_q6 = L::high_bits == 2;

// Adds block b's products, times its scales, to the T chunk sums.
template <class L, int T, int b, int... g>
PUNA_INLINE void add_block(const uint8_t* chunk, const ActivationBlock* const* a, __m512* sums,
                           std::integer_sequence<int, g...>) {
    for (int i = b * L::bytes / 8 / 64 * 64; i < (b + 1) * L::bytes / 8; i += 64) prefetch(chunk + ahead + i);
    const uint8_t* low = chunk + L::low + b * 16 * R;
    const uint8_t* high = chunk + L::high + b * 4 * R * L::high_bits;
    __m512i part[T];
    const auto quad = [&](auto index) __attribute__((always_inline)) {
        constexpr int i = decltype(index)::value;
        __m512i even, odd;
        quads<L, i>(low, high, even, odd);
        constexpr int chain = is_q6<L> ? 2 : 4;   // Q6_K has a scale for every 16 columns
        constexpr bool first = i % chain == 0, last = i % chain == chain - 1;
        __m512 scale;
        if constexpr (last) {
            if constexpr (is_q6<L>) scale = factors<true, i / 2>(chunk + L::scales + b * 2 * R);
            else scale = factors<false, b % 2>(chunk + L::scales + b / 2 * 2 * R);
        }
        for (int t = 0; t < T; t++) {
            const int8_t* x = a[t]->q + 32 * b + 8 * i;
            part[t] = _mm512_dpbusd_epi32(first ? _mm512_setzero_si512() : part[t], even, broadcast4(x));
            part[t] = _mm512_dpbusd_epi32(part[t], odd, broadcast4(x + 4));
            if constexpr (last) sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[t]), scale, sums[t]);
        }
    };
    (quad(std::integral_constant<int, g>{}), ...);
}

template <class L, int T, int... b>
PUNA_INLINE void add_chunk(const uint8_t* chunk, const ActivationBlock* const* a, __m512* sums,
                           std::integer_sequence<int, b...>) {
    (add_block<L, T, b>(chunk, a, sums, std::make_integer_sequence<int, 4>()), ...);
}

template <class L, int T>
void product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
             float* const* y) {
    for (int64_t group = 0; group < groups; group++, weights += stride) {
        __m512 totals[T];
        const ActivationBlock* a[T];
        for (int t = 0; t < T; t++) {
            totals[t] = _mm512_setzero_ps();
            a[t] = static_cast<const ActivationBlock*>(x[t]);
        }
        const uint8_t* chunk = weights;
        for (int64_t k = 0; k < columns; k += chunk_columns, chunk += L::bytes) {
            __m512 sums[T];
            for (int t = 0; t < T; t++) sums[t] = _mm512_setzero_ps();
            add_chunk<L, T>(chunk, a, sums, std::make_integer_sequence<int, 8>());
            const __m512 d = halves(chunk + L::d);
            // What every number is too large by (Q6_K), or the block's least value, meets the sums of x.
            __m512i rest[T];
            for (int t = 0; t < T; t++) rest[t] = _mm512_setzero_si512();
            constexpr int pairs = is_q6<L> ? 8 : 4;
            for (int pair = 0; pair < pairs; pair++) {
                __m512i with;
                if constexpr (is_q6<L>) with = _mm512_cvtepi8_epi16(load256(chunk + L::scales + pair * 2 * R));
                else with = _mm512_cvtepu8_epi16(load256(chunk + L::mins + pair * 2 * R));
                for (int t = 0; t < T; t++) {
                    const int16_t* of = is_q6<L> ? a[t]->sums16 : a[t]->sums32;
                    rest[t] = _mm512_dpwssd_epi32(rest[t], with, broadcast4(of + 2 * pair));
                }
            }
            for (int t = 0; t < T; t++) {
                const __m512 da = _mm512_set1_ps(a[t]->d[0]);
                __m512 sum = sums[t];
                if constexpr (is_q6<L>) {
                    sum = _mm512_sub_ps(sum, _mm512_cvtepi32_ps(_mm512_slli_epi32(rest[t], 5)));
                } else {
                    const __m512 dmin = _mm512_mul_ps(halves(chunk + L::dmin), da);
                    totals[t] = _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(rest[t]), totals[t]);
                }
                totals[t] = _mm512_fmadd_ps(_mm512_mul_ps(d, da), sum, totals[t]);
                a[t]++;
            }
        }
        for (int t = 0; t < T; t++) _mm512_storeu_ps(y[t] + group * R, totals[t]);
    }
}

template <class L, int... T>
void set(MatrixKernels& kernels, Layout layout, std::integer_sequence<int, T...>) {
    const int l = static_cast<int>(layout);
    kernels.tile[l] = largest_tile;
    ((kernels.product[l][T] = product<L, T + 1>), ...);
}

}  // namespace

void add_super_blocks_avx512(MatrixKernels& kernels) {
    constexpr auto tiles = std::make_integer_sequence<int, largest_tile>();
    set<Q4K<R>>(kernels, Layout::q4_k, tiles);
    set<Q5K<R>>(kernels, Layout::q5_k, tiles);
    set<Q6K<R>>(kernels, Layout::q6_k, tiles);
}

}  // namespace puna
