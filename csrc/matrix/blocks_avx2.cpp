// Layouts in blocks of 32 with AVX2: Q8_0, Q4_0, and the scaled one of all other types.
#include <utility>

#include "matrix/kernels_avx2.h"
#include "matrix/tile_avx2.h"

namespace puna {
namespace {

struct Nibbles {
    static constexpr int high_bits = 0;
};

// Products of one vector of signed bytes, 16-bit sums of two widened to 32 bits: |w| times x with w's sign is
// at most 128 * 127 * 2 and just fits.
PUNA_INLINE __m256i signed_products(__m256i w, __m256i magnitude, const int8_t* x) {
    const __m256i signed_x = _mm256_sign_epi8(broadcast4(x), w);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signed_x), _mm256_set1_epi16(1));
}

// Sums over `vectors` quads starting at `numbers`, for T tokens.
template <int T, int vectors>
PUNA_INLINE void signed_sums(const uint8_t* numbers, const int8_t* const* x, __m256i* sums) {
    for (int t = 0; t < T; t++) sums[t] = _mm256_setzero_si256();
    for (int i = 0; i < vectors; i++) {
        const __m256i w = load256(numbers + 4 * R * i), magnitude = _mm256_abs_epi8(w);
        for (int t = 0; t < T; t++) sums[t] = _mm256_add_epi32(sums[t], signed_products(w, magnitude, x[t] + 4 * i));
    }
}

template <int T>
struct Q80Block {
    static constexpr int bytes = Q80<R>::numbers, header = 2 * R;
    static PUNA_INLINE void add(const uint8_t* scales, const uint8_t*, const uint8_t* numbers,
                                const ActivationBlock* const* a, int b, __m256* totals) {
        const int8_t* x[T];
        for (int t = 0; t < T; t++) x[t] = a[t]->q + 32 * b;
        __m256i sums[T];
        signed_sums<T, 8>(numbers, x, sums);
        const __m256 d = halves(scales);
        for (int t = 0; t < T; t++) {
            const __m256 factor = _mm256_mul_ps(d, _mm256_set1_ps(a[t]->d[b]));
            totals[t] = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sums[t]), totals[t]);
        }
    }
};

template <int T>
struct Q40Block {
    static constexpr int bytes = Q40<R>::numbers, header = 2 * R;
    template <int... g>
    static PUNA_INLINE void products(const uint8_t* numbers, const ActivationBlock* const* a, int b, __m256i* part,
                                     std::integer_sequence<int, g...>) {
        const auto quad = [&](auto index) __attribute__((always_inline)) {
            constexpr int i = decltype(index)::value;
            __m256i even, odd;
            quads<Nibbles, i>(numbers, numbers, even, odd);
            for (int t = 0; t < T; t++) {
                const int8_t* x = a[t]->q + 32 * b + 8 * i;
                const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(even, broadcast4(x)),
                                                      _mm256_maddubs_epi16(odd, broadcast4(x + 4)));
                part[t] = i == 0 ? both : _mm256_add_epi16(part[t], both);
            }
        };
        (quad(std::integral_constant<int, g>{}), ...);
    }
    static PUNA_INLINE void add(const uint8_t* scales, const uint8_t*, const uint8_t* numbers,
                                const ActivationBlock* const* a, int b, __m256* totals) {
        __m256i part[T];
        products(numbers, a, b, part, std::make_integer_sequence<int, 4>());
        const __m256 d = halves(scales);
        for (int t = 0; t < T; t++) {
            const __m256i excess = _mm256_slli_epi32(_mm256_set1_epi32(a[t]->wide32[b]), 3);   // 8 per number
            const __m256i sum = _mm256_sub_epi32(_mm256_madd_epi16(part[t], _mm256_set1_epi16(1)), excess);
            const __m256 factor = _mm256_mul_ps(d, _mm256_set1_ps(a[t]->d[b]));
            totals[t] = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sum), totals[t]);
        }
    }
};

template <int T>
struct ScaledBlock {
    static constexpr int bytes = Scaled<R>::numbers, header = 8 * R;   // of scales, and as many of offsets
    static PUNA_INLINE void add(const uint8_t* scales, const uint8_t* offsets, const uint8_t* numbers,
                                const ActivationBlock* const* a, int b, __m256* totals) {
        for (int half = 0; half < 2; half++) {
            const int8_t* x[T];
            for (int t = 0; t < T; t++) x[t] = a[t]->q + 32 * b + 16 * half;
            __m256i sums[T];
            signed_sums<T, 4>(numbers + 16 * R * half, x, sums);
            const __m256 scale = _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + R * half);
            const __m256 offset = _mm256_loadu_ps(reinterpret_cast<const float*>(offsets) + R * half);
            for (int t = 0; t < T; t++) {
                const __m256 da = _mm256_set1_ps(a[t]->d[b]);
                const __m256 sum16 = _mm256_set1_ps(static_cast<float>(a[t]->sums16[2 * b + half]));
                totals[t] = _mm256_fmadd_ps(_mm256_mul_ps(scale, da), _mm256_cvtepi32_ps(sums[t]), totals[t]);
                totals[t] = _mm256_fmadd_ps(_mm256_mul_ps(offset, da), sum16, totals[t]);
            }
        }
    }
};

template <template <int> class B, int T>
void product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
             float* const* y) {
    using Of = B<T>;
    for (int64_t group = 0; group < groups; group++, weights += stride) {
        __m256 totals[T];
        const ActivationBlock* a[T];
        for (int t = 0; t < T; t++) {
            totals[t] = _mm256_setzero_ps();
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
        for (int t = 0; t < T; t++) _mm256_storeu_ps(y[t] + group * R, totals[t]);
    }
}

template <template <int> class B>
void set(MatrixKernels& kernels, Layout layout) {
    const int l = static_cast<int>(layout);
    kernels.tile[l] = 4;
    kernels.product[l][0] = product<B, 1>;
    kernels.product[l][1] = product<B, 2>;
    kernels.product[l][2] = product<B, 3>;
    kernels.product[l][3] = product<B, 4>;
}

}  // namespace

void add_blocks_avx2(MatrixKernels& kernels) {
    set<Q80Block>(kernels, Layout::q8_0);
    set<Q40Block>(kernels, Layout::q4_0);
    set<ScaledBlock>(kernels, Layout::scaled);
}

}  // namespace puna
