// Q4_K, Q5_K and Q6_K with AVX2.
//
// maddubs multiplies 4-, 5- or 6-bit numbers with activations and adds neighbours to 16 bits; those sums hold
// 8, 4 or 2 such products (15 * 127 * 2 * 8 < 32768) before one multiply-add with the block's scale takes them
// to 32 bits. All of a chunk stays in integers, so their order is free; the float sum is one step per chunk.
#include <utility>

#include "matrix/kernels_avx2.h"
#include "matrix/tile_avx2.h"

namespace puna {
namespace {

template <class L>
constexpr bool is_q6 = L::high_bits == 2;

// Adds block b's products to the T integer sums.
template <class L, int T, int b, int... g>
PUNA_INLINE void add_block(const uint8_t* chunk, const ActivationBlock* const* a, __m256i* sums,
                           std::integer_sequence<int, g...>) {
    for (int i = b * L::bytes / 8 / 64 * 64; i < (b + 1) * L::bytes / 8; i += 64) prefetch(chunk + ahead + i);
    const uint8_t* low = chunk + L::low + b * 16 * R;
    const uint8_t* high = chunk + L::high + b * 4 * R * L::high_bits;
    __m256i part[T];
    const auto quad = [&](auto index) __attribute__((always_inline)) {
        constexpr int i = decltype(index)::value;
        __m256i even, odd;
        quads<L, i>(low, high, even, odd);
        // Where a chain of 16-bit sums begins and ends.
        constexpr int chain = is_q6<L> ? 1 : L::high_bits == 1 ? 2 : 4;
        constexpr bool first = i % chain == 0, last = i % chain == chain - 1;
        __m256i scale;
        if constexpr (last) {
            if constexpr (is_q6<L>) scale = factors<true, i / 2>(chunk + L::scales + b * 2 * R);
            else scale = factors<false, b % 2>(chunk + L::scales + b / 2 * 2 * R);
        }
        for (int t = 0; t < T; t++) {
            const int8_t* x = a[t]->q + 32 * b + 8 * i;
            const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(even, broadcast4(x)),
                                                  _mm256_maddubs_epi16(odd, broadcast4(x + 4)));
            part[t] = first ? both : _mm256_add_epi16(part[t], both);
            if constexpr (last) sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(part[t], scale));
        }
    };
    (quad(std::integral_constant<int, g>{}), ...);
}

template <class L, int T, int... b>
PUNA_INLINE void add_chunk(const uint8_t* chunk, const ActivationBlock* const* a, __m256i* sums,
                           std::integer_sequence<int, b...>) {
    (add_block<L, T, b>(chunk, a, sums, std::make_integer_sequence<int, 4>()), ...);
}

template <class L, int T>
void product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
             float* const* y) {
    for (int64_t group = 0; group < groups; group++, weights += stride) {
        __m256 totals[T];
        const ActivationBlock* a[T];
        for (int t = 0; t < T; t++) {
            totals[t] = _mm256_setzero_ps();
            a[t] = static_cast<const ActivationBlock*>(x[t]);
        }
        const uint8_t* chunk = weights;
        for (int64_t k = 0; k < columns; k += chunk_columns, chunk += L::bytes) {
            __m256i sums[T];
            for (int t = 0; t < T; t++) sums[t] = _mm256_setzero_si256();
            add_chunk<L, T>(chunk, a, sums, std::make_integer_sequence<int, 8>());
            const __m256 d = halves(chunk + L::d);
            for (int t = 0; t < T; t++) {
                const __m256 da = _mm256_set1_ps(a[t]->d[0]);
                if constexpr (is_q6<L>) {   // numbers are 32 too large
                    __m256i excess = _mm256_setzero_si256();
                    for (int pair = 0; pair < 8; pair++) {
                        const __m256i scales = _mm256_cvtepi8_epi16(load128(chunk + L::scales + pair * 2 * R));
                        excess = _mm256_add_epi32(
                            excess, _mm256_madd_epi16(scales, broadcast4(a[t]->sums16 + 2 * pair)));
                    }
                    sums[t] = _mm256_sub_epi32(sums[t], _mm256_slli_epi32(excess, 5));
                } else {
                    __m256i least = _mm256_setzero_si256();
                    for (int pair = 0; pair < 4; pair++) {
                        const __m256i mins = _mm256_cvtepu8_epi16(load128(chunk + L::mins + pair * 2 * R));
                        least = _mm256_add_epi32(least,
                                                 _mm256_madd_epi16(mins, broadcast4(a[t]->sums32 + 2 * pair)));
                    }
                    const __m256 dmin = _mm256_mul_ps(halves(chunk + L::dmin), da);
                    totals[t] = _mm256_fnmadd_ps(dmin, _mm256_cvtepi32_ps(least), totals[t]);
                }
                totals[t] = _mm256_fmadd_ps(_mm256_mul_ps(d, da), _mm256_cvtepi32_ps(sums[t]), totals[t]);
                a[t]++;
            }
        }
        for (int t = 0; t < T; t++) _mm256_storeu_ps(y[t] + group * R, totals[t]);
    }
}

template <class L>
void set(MatrixKernels& kernels, Layout layout) {
    const int l = static_cast<int>(layout);
    kernels.tile[l] = 4;   // 4 sums, 4 chains, 4 totals and the numbers fill the 16 registers
    kernels.product[l][0] = product<L, 1>;
    kernels.product[l][1] = product<L, 2>;
    kernels.product[l][2] = product<L, 3>;
    kernels.product[l][3] = product<L, 4>;
}

}  // namespace

void add_super_blocks_avx2(MatrixKernels& kernels) {
    set<Q4K<R>>(kernels, Layout::q4_k);
    set<Q5K<R>>(kernels, Layout::q5_k);
    set<Q6K<R>>(kernels, Layout::q6_k);
}

}  // namespace puna
