#include <algorithm>
#include <cmath>
#include <cstring>

#include "matrix/lanes_avx2.h"
#include "matrix/quantize.h"
#include "matrix/sets.h"

namespace puna {
namespace {

struct Vectors {
    using Bytes = __m256i;

    static PUNA_INLINE __m256i magnitude_bits(const float* x) {
        return _mm256_and_si256(Avx2::load(x), _mm256_set1_epi32(0x7fffffff));
    }

    static PUNA_INLINE uint32_t largest_bits(const float* x, int n) {
        __m256i most[4];
        for (int j = 0; j < 4; j++) most[j] = _mm256_setzero_si256();
        for (int i = 0; i < n; i += 32) {
            for (int j = 0; j < 4; j++) most[j] = _mm256_max_epi32(most[j], magnitude_bits(x + i + 8 * j));
        }
        const __m256i all = _mm256_max_epi32(_mm256_max_epi32(most[0], most[1]), _mm256_max_epi32(most[2], most[3]));
        __m128i m = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
        return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
    }

    static PUNA_INLINE void largest_of_32s(const float* x, uint32_t* bits) {
        __m256i most[8], twos[4], fours[2];   // the largest of 1, 2 and 4 of the 32s
        for (int i = 0; i < 8; i++, x += 32) {
            most[i] = _mm256_max_epi32(_mm256_max_epi32(magnitude_bits(x), magnitude_bits(x + 8)),
                                       _mm256_max_epi32(magnitude_bits(x + 16), magnitude_bits(x + 24)));
        }
        for (int i = 0; i < 4; i++) {
            const __m256i a = most[2 * i], b = most[2 * i + 1];
            twos[i] = _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        }
        for (int i = 0; i < 2; i++) {
            const __m256i a = twos[2 * i], b = twos[2 * i + 1];
            fours[i] = _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        }
        const __m256i all = _mm256_max_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                                             _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits), all);
    }

    static PUNA_INLINE Bytes rounded(const float* x, float factor) {
        const __m256 by = _mm256_set1_ps(factor);
        __m256i v[4];
        for (int j = 0; j < 4; j++) v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * j), by));
        const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
        return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));   // back in order
    }

    static PUNA_INLINE Bytes zeros() { return _mm256_setzero_si256(); }

    static PUNA_INLINE void store(Bytes q, int8_t* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), q); }

    static PUNA_INLINE void add_up(const int8_t* q, int32_t* sums) {
        for (int i = 0; i < 256; i += 128, q += 128, sums += 8) {
            __m256i fours[4];   // the sums of each 4 bytes
            for (int j = 0; j < 4; j++) {
                const __m256i twos = _mm256_maddubs_epi16(_mm256_set1_epi8(1), Avx2::load(q + 32 * j));
                fours[j] = _mm256_madd_epi16(twos, _mm256_set1_epi16(1));
            }
            const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(fours[0], fours[1]),
                                                  _mm256_hadd_epi32(fours[2], fours[3]));
            const __m128i even = _mm256_castsi256_si128(all), odd = _mm256_extracti128_si256(all, 1);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), _mm_unpacklo_epi32(even, odd));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + 4), _mm_unpackhi_epi32(even, odd));
        }
    }
};

constexpr int full = WordBlock::columns;

void words(const float* x, int64_t columns, WordBlock* block) {
    alignas(32) float rest[full];
    if (columns < full) {
        std::memset(rest, 0, sizeof rest);
        std::memcpy(rest, x, static_cast<size_t>(columns) * sizeof(float));
        x = rest;
    }
    const uint32_t bits = Vectors::largest_bits(x, full);
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    const bool finite = bits < 0x7f800000, scaled = finite && largest >= smallest_as_words;
    // Squares of values divided by the largest: they neither overflow nor vanish.
    const __m256 inverse = _mm256_set1_ps(scaled ? 1 / largest : 0);
    __m256 squares[4];
    for (__m256& each : squares) each = _mm256_setzero_ps();
    for (int i = 0; i < full; i += 32) {
        for (int j = 0; j < 4; j++) {
            const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * j), inverse);
            squares[j] = _mm256_fmadd_ps(v, v, squares[j]);
        }
    }
    const __m256 all = _mm256_add_ps(_mm256_add_ps(squares[0], squares[1]), _mm256_add_ps(squares[2], squares[3]));
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, all);
    const float sum = ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
    const float most = scaled ? std::min(largest_word, largest_word_norm / std::sqrt(sum)) : 0;
    block->scale = scaled ? largest / most : finite ? 0.0f : std::nanf("");
    const __m256 factor = _mm256_set1_ps(scaled ? most / largest : 0);
    for (int i = 0; i < full; i += 16) {
        const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
        const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), factor));
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);   // back in order
        _mm256_store_si256(reinterpret_cast<__m256i*>(block->words + i), both);
    }
}

}  // namespace

void avx2::add_quantize(MatrixKernels& kernels) { set_quantize<Vectors>(kernels); }
void avx2::add_words(MatrixKernels& kernels) { kernels.words = words; }

}  // namespace puna
