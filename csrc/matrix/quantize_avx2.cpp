// Activations to 8-bit integers with AVX2.
#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx2.h"

namespace puna {
namespace {

// The largest magnitude of n values (a multiple of 32) as bits: NaN > infinity > numbers, compared as integers.
PUNA_INLINE uint32_t largest_bits(const float* x, int n) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most[4];
    for (int j = 0; j < 4; j++) most[j] = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 32) {
        for (int j = 0; j < 4; j++) {
            most[j] = _mm256_max_epi32(most[j], _mm256_and_si256(Avx2::load(x + i + 8 * j), magnitude));
        }
    }
    const __m256i all = _mm256_max_epi32(_mm256_max_epi32(most[0], most[1]), _mm256_max_epi32(most[2], most[3]));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// 32 values divided by their scale, as bytes in order.
PUNA_INLINE __m256i round32(const float* x, __m256 inverse) {
    __m256i v[4];
    for (int j = 0; j < 4; j++) v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * j), inverse));
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

PUNA_INLINE void store_block(__m256i q, int b, ActivationBlock* block) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block->q + 32 * b), q);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));   // 4 sums for each 16
    const __m256i twos = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4e));
    const __m256i ones = _mm256_add_epi32(twos, _mm256_shuffle_epi32(twos, 0xb1));
    const int first = _mm256_cvtsi256_si32(ones), second = _mm256_extract_epi32(ones, 4);
    block->sums16[2 * b] = static_cast<int16_t>(first);
    block->sums16[2 * b + 1] = static_cast<int16_t>(second);
    block->sums32[b] = static_cast<int16_t>(first + second);
    block->wide32[b] = first + second;
}

template <int Scale>
void quantize(const float* x, int64_t columns, ActivationBlock* blocks) {
    for (int64_t k = 0; k < columns; k += chunk_columns, blocks++) {
        const int n = static_cast<int>(columns - k < chunk_columns ? columns - k : chunk_columns);
        for (int i = 0; i < n; i += Scale) {
            const int count = n - i < Scale ? n - i : Scale;
            const uint32_t bits = largest_bits(x + k + i, count);
            float largest;
            __builtin_memcpy(&largest, &bits, 4);
            const bool finite = bits < 0x7f800000;
            const bool scaled = finite && largest >= smallest_scaled;
            blocks->d[i / Scale] = scaled ? largest / 127.0f : finite ? 0.0f : __builtin_nanf("");
            const __m256 inverse = _mm256_set1_ps(scaled ? 127.0f / largest : 0.0f);
            for (int j = 0; j < count; j += 32) {
                const __m256i q = scaled ? round32(x + k + i + j, inverse) : _mm256_setzero_si256();
                store_block(q, (i + j) / 32, blocks);
            }
        }
    }
}

}  // namespace

void add_quantize_avx2(MatrixKernels& kernels) {
    kernels.quantize_per_256 = quantize<256>;
    kernels.quantize_per_32 = quantize<32>;
}

}  // namespace puna
