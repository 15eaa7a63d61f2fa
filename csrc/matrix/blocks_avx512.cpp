// Layouts in blocks of 32 with AVX-512 VNNI, 16 rows at a time: Q8_0, Q4_0, and the scaled one of other types.
//
// dpbusd wants unsigned numbers: signed ones get 128 added (by flipping their top bit), Q4_0's are 8 too large
// as they are. A block's sum therefore begins with what the excess will add, taken away.
#include <utility>

#include "matrix/kernels_avx512.h"
#include "matrix/tile_avx512.h"

namespace puna {
namespace {

struct Nibbles {
    static constexpr int high_bits = 0;
};

// Adds `vectors` quads of signed numbers starting at `numbers` to the T sums.
template <int T, int vectors>
PUNA_INLINE void add_signed(const uint8_t* numbers, const int8_t* const* x, __m512i* sums) {
    const __m512i top_bits = _mm512_set1_epi8(static_cast<char>(0x80));
    for (int i = 0; i < vectors; i++) {
        const __m512i w = _mm512_xor_si512(load512(numbers + 4 * R * i), top_bits);
        for (int t = 0; t < T; t++) sums[t] = _mm512_dpbusd_epi32(sums[t], w, broadcast4(x[t] + 4 * i));
    }
}

template <int T>
struct Q80Block {
    static constexpr int bytes = Q80<R>::numbers, header = 2 * R;
    static PUNA_INLINE void add(const uint8_t* scales, const uint8_t*, const uint8_t* numbers,
                                const ActivationBlock* const* a, int b, __m512* totals) {
        const int8_t* x[T];
        __m512i sums[T];
        for (int t = 0; t < T; t++) {
            x[t] = a[t]->q + 32 * b;
            sums[t] = _mm512_set1_epi32(-128 * a[t]->wide32[b]);
        }
        add_signed<T, 8>(numbers, x, sums);
        const __m512 d = halves(scales);
        for (int t = 0; t < T; t++) {
            const __m512 factor = _mm512_mul_ps(d, _mm512_set1_ps(a[t]->d[b]));
            totals[t] = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(sums[t]), totals[t]);
        }
    }
};

template <int T>
struct Q40Block {
    static constexpr int bytes = Q40<R>::numbers, header = 2 * R;
    template <int... g>
    static PUNA_INLINE void products(const uint8_t* numbers, const ActivationBlock* const* a, int b, __m512i* sums,
                                     std::integer_sequence<int, g...>) {
        const auto quad = [&](auto index) __attribute__((always_inline)) {
            constexpr int i = decltype(index)::value;
            __m512i even, odd;
            quads<Nibbles, i>(numbers, numbers, even, odd);
            for (int t = 0; t < T; t++) {
                const int8_t* x = a[t]->q + 32 * b + 8 * i;
                sums[t] = _mm512_dpbusd_epi32(sums[t], even, broadcast4(x));
                sums[t] = _mm512_dpbusd_epi32(sums[t], odd, broadcast4(x + 4));
            }
        };
        (quad(std::integral_constant<int, g>{}), ...);
    }
    static PUNA_INLINE void add(const uint8_t* scales, const uint8_t*, const uint8_t* numbers,
                                const ActivationBlock* const* a, int b, __m512* totals) {
        __m512i sums[T];
        for (int t = 0; t < T; t++) sums[t] = _mm512_set1_epi32(-8 * a[t]->wide32[b]);
        products(numbers, a, b, sums, std::make_integer_sequence<int, 4>());
        const __m512 d = halves(scales);
        for (int t = 0; t < T; t++) {
            const __m512 factor = _mm512_mul_ps(d, _mm512_set1_ps(a[t]->d[b]));
            totals[t] = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(sums[t]), totals[t]);
        }
    }
};

template <int T>
struct ScaledBlock {
    static constexpr int bytes = Scaled<R>::numbers, header = 8 * R;   // of scales, and as many of offsets
    static PUNA_INLINE void add(const uint8_t* scales, const uint8_t* offsets, const uint8_t* numbers,
                                const ActivationBlock* const* a, int b, __m512* totals) {
        for (int half = 0; half < 2; half++) {
            const int8_t* x[T];
            __m512i sums[T];
            for (int t = 0; t < T; t++) {
                x[t] = a[t]->q + 32 * b + 16 * half;
                sums[t] = _mm512_set1_epi32(-128 * a[t]->sums16[2 * b + half]);
            }
            add_signed<T, 4>(numbers + 16 * R * half, x, sums);
            const __m512 scale = _mm512_loadu_ps(reinterpret_cast<const float*>(scales) + R * half);
            const __m512 offset = _mm512_loadu_ps(reinterpret_cast<const float*>(offsets) + R * half);
            for (int t = 0; t < T; t++) {
                const __m512 da = _mm512_set1_ps(a[t]->d[b]);
                const __m512 sum16 = _mm512_set1_ps(static_cast<float>(a[t]->sums16[2 * b + half]));
                totals[t] = _mm512_fmadd_ps(_mm512_mul_ps(scale, da), _mm512_cvtepi32_ps(sums[t]), totals[t]);
                totals[t] = _mm512_fmadd_ps(_mm512_mul_ps(offset, da), sum16, totals[t]);
            }
        }
    }
};

template <template <int> class B, int T>
void product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
             float* const* y) {
    using Of = B<T>;
    for (int64_t group = 0; group < groups; group++, weights += stride) {
        __m512 totals[T];
        const ActivationBlock* a[T];
        for (int t = 0; t < T; t++) {
            totals[t] = _mm512_setzero_ps();
            a[t] = static_cast<const ActivationBlock*>(x[t]);
        }
        const uint8_t* scales = weights;
        for (int64_t k = 0; k < columns; k += chunk_columns) {
            const int blocks = columns - k < chunk_columns ? static_cast<int>((columns - k) / 32) : 8;
            // Layouts without offsets have their numbers where these would be.
            const uint8_t* offsets = scales + Of::header * blocks;
            const uint8_t* numbers = Of::header == 2 * R ? offsets : offsets + Of::header * blocks;
            for (int b = 0; b < blocks; b++, numbers += Of::bytes) {
                for (int i = 0; i < Of::bytes; i += 64) prefetch(numbers + ahead + i);
                Of::add(scales + Of::header * b, offsets + Of::header * b, numbers, a, b, totals);
            }
            scales = numbers;
            for (int t = 0; t < T; t++) a[t]++;
        }
        for (int t = 0; t < T; t++) _mm512_storeu_ps(y[t] + group * R, totals[t]);
    }
}

template <template <int> class B, int... T>
void set(MatrixKernels& kernels, Layout layout, std::integer_sequence<int, T...>) {
    const int l = static_cast<int>(layout);
    kernels.tile[l] = largest_tile;
    ((kernels.product[l][T] = product<B, T + 1>), ...);
}

}  // namespace

void add_blocks_avx512(MatrixKernels& kernels) {
    constexpr auto tiles = std::make_integer_sequence<int, largest_tile>();
    set<Q80Block>(kernels, Layout::q8_0, tiles);
    set<Q40Block>(kernels, Layout::q4_0, tiles);
    set<ScaledBlock>(kernels, Layout::scaled, tiles);
}

}  // namespace puna
