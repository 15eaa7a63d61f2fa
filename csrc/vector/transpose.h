// Transposition of squares of floats, compiled once per instruction set by the files that include this.
#pragma once
#include "vector/vector.h"

namespace puna {
namespace {

#if defined(__AVX2__)
// Four-by-four squares inside each 128-bit lane.
template <class V, class LowPs, class HighPs, class LowPd, class HighPd>
PUNA_INLINE void transpose_lanes(V* r, LowPs low_ps, HighPs high_ps, LowPd low_pd, HighPd high_pd) {
    const V a = low_ps(r[0], r[1]), b = high_ps(r[0], r[1]), c = low_ps(r[2], r[3]), d = high_ps(r[2], r[3]);
    r[0] = low_pd(a, c), r[1] = high_pd(a, c), r[2] = low_pd(b, d), r[3] = high_pd(b, d);
}
#endif

#if defined(__AVX512F__)
// Transposes 16 vectors into columns at `to`.
PUNA_INLINE void transpose(__m512* r, float* to, int64_t to_stride) {
    for (int i = 0; i < 16; i += 4) {
        transpose_lanes(
            r + i, [](__m512 a, __m512 b) { return _mm512_unpacklo_ps(a, b); },
            [](__m512 a, __m512 b) { return _mm512_unpackhi_ps(a, b); },
            [](__m512 a, __m512 b) {
                return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
            },
            [](__m512 a, __m512 b) {
                return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
            });
    }
    // Now lane l of r[4i + k] holds column 4l + k of rows 4i to 4i + 3.
    for (int k = 0; k < 4; k++) {
        const __m512 a = _mm512_shuffle_f32x4(r[k], r[4 + k], 0x44);
        const __m512 b = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0x44);
        const __m512 c = _mm512_shuffle_f32x4(r[k], r[4 + k], 0xee);
        const __m512 d = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0xee);
        _mm512_storeu_ps(to + k * to_stride, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(to + (4 + k) * to_stride, _mm512_shuffle_f32x4(a, b, 0xdd));
        _mm512_storeu_ps(to + (8 + k) * to_stride, _mm512_shuffle_f32x4(c, d, 0x88));
        _mm512_storeu_ps(to + (12 + k) * to_stride, _mm512_shuffle_f32x4(c, d, 0xdd));
    }
}
#endif

// Transposes the floats from `at` on of as many rows as a vector has lanes into columns at `to`.
PUNA_INLINE void transpose(const float* const* rows, int64_t at, float* to, int64_t to_stride) {
#if defined(__AVX512F__)
    __m512 r[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(rows[i] + at);
    transpose(r, to, to_stride);
#elif defined(__AVX2__)
    __m256 r[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(rows[i] + at);
    for (int i = 0; i < 8; i += 4) {
        transpose_lanes(
            r + i, [](__m256 a, __m256 b) { return _mm256_unpacklo_ps(a, b); },
            [](__m256 a, __m256 b) { return _mm256_unpackhi_ps(a, b); },
            [](__m256 a, __m256 b) {
                return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
            },
            [](__m256 a, __m256 b) {
                return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
            });
    }
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_ps(to + k * to_stride, _mm256_permute2f128_ps(r[k], r[4 + k], 0x20));
        _mm256_storeu_ps(to + (4 + k) * to_stride, _mm256_permute2f128_ps(r[k], r[4 + k], 0x31));
    }
#else
    for (int j = 0; j < Vec::width; j++) {
        for (int i = 0; i < Vec::width; i++) to[j * to_stride + i] = rows[i][at + j];
    }
#endif
}

#if defined(__AVX512F__)
// Transposes eight 16-bit numbers from each of 32 rows: to[c] holds column c, in the order of the rows.
PUNA_INLINE void transpose_words(const uint16_t* const* rows, int64_t at, __m512i* to) {
    // Rows are loaded where the three rounds below will leave them: numbers 8l to 8l + 7 of a column stay in lane l.
    const auto gather = [&](int first) {
        const auto piece = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + at)); };
        __m512i r = _mm512_castsi128_si512(piece(first));
        r = _mm512_inserti32x4(r, piece(first + 8), 1);
        r = _mm512_inserti32x4(r, piece(first + 16), 2);
        return _mm512_inserti32x4(r, piece(first + 24), 3);
    };
    __m512i pairs[8];   // columns 2k and 2k + 1 of four rows, for k = 0 ... 3, then of the other four
    for (int i = 0; i < 2; i++) {
        const __m512i a = gather(4 * i), b = gather(4 * i + 1), c = gather(4 * i + 2), d = gather(4 * i + 3);
        const __m512i ab_low = _mm512_unpacklo_epi16(a, b), ab_high = _mm512_unpackhi_epi16(a, b);
        const __m512i cd_low = _mm512_unpacklo_epi16(c, d), cd_high = _mm512_unpackhi_epi16(c, d);
        pairs[4 * i] = _mm512_unpacklo_epi32(ab_low, cd_low);
        pairs[4 * i + 1] = _mm512_unpackhi_epi32(ab_low, cd_low);
        pairs[4 * i + 2] = _mm512_unpacklo_epi32(ab_high, cd_high);
        pairs[4 * i + 3] = _mm512_unpackhi_epi32(ab_high, cd_high);
    }
    for (int k = 0; k < 4; k++) {
        to[2 * k] = _mm512_unpacklo_epi64(pairs[k], pairs[4 + k]);
        to[2 * k + 1] = _mm512_unpackhi_epi64(pairs[k], pairs[4 + k]);
    }
}
#endif

}  // namespace
}  // namespace puna
