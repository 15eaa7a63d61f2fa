// The pieces the AVX-512 VNNI kernels are made of.
#pragma once
#include <immintrin.h>

#include "matrix/kernels.h"

namespace puna {
namespace {

constexpr int R = 16;
constexpr int largest_tile = 8;   // 8 running products, 8 chunk sums and the numbers fit the 32 registers

#define PUNA_INLINE inline __attribute__((always_inline))

PUNA_INLINE __m512i load512(const void* p) { return _mm512_loadu_si512(p); }
PUNA_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
PUNA_INLINE __m512 halves(const void* p) { return _mm512_cvtph_ps(load256(p)); }

PUNA_INLINE __m512i broadcast4(const void* p) {
    int bytes;
    __builtin_memcpy(&bytes, p, 4);
    return _mm512_set1_epi32(bytes);
}

// One stream is read from front to back: the hardware follows it within a page, this carries it over the edge.
constexpr int ahead = 2048;   // bytes
PUNA_INLINE void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// Quads 2g and 2g+1 of a block of nibbles, with their high bits: numbers 0..15, 0..31 or 0..63.
template <class L, int g>
PUNA_INLINE void quads(const uint8_t* low, const uint8_t* high, __m512i& even, __m512i& odd) {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i v = load512(low + 64 * g);
    even = _mm512_and_si512(v, mask);
    odd = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
    if constexpr (L::high_bits == 1) {   // bit q to bit 4
        const __m512i h = load512(high), bit = _mm512_set1_epi8(16);
        const __m512i e = g <= 2 ? _mm512_slli_epi16(h, g <= 2 ? 4 - 2 * g : 0) : _mm512_srli_epi16(h, 2);
        const __m512i o = g <= 1 ? _mm512_slli_epi16(h, g <= 1 ? 3 - 2 * g : 0)
                                 : _mm512_srli_epi16(h, g <= 1 ? 0 : 2 * g - 3);
        even = _mm512_or_si512(even, _mm512_and_si512(e, bit));
        odd = _mm512_or_si512(odd, _mm512_and_si512(o, bit));
    } else if constexpr (L::high_bits == 2) {   // bits 2i, 2i+1 to bits 4, 5
        const __m512i h = load512(high + 64 * (g / 2)), bits = _mm512_set1_epi8(48);
        const __m512i e = g % 2 ? h : _mm512_slli_epi16(h, 4);
        const __m512i o = g % 2 ? _mm512_srli_epi16(h, 2) : _mm512_slli_epi16(h, 2);
        even = _mm512_or_si512(even, _mm512_and_si512(e, bits));
        odd = _mm512_or_si512(odd, _mm512_and_si512(o, bits));
    }
}

// Byte `odd` of each row's pair as a float.
template <bool is_signed, int odd>
PUNA_INLINE __m512 factors(const uint8_t* pairs) {
    if constexpr (is_signed) {
        const __m512i both = _mm512_cvtepi16_epi32(load256(pairs));
        return _mm512_cvtepi32_ps(odd ? _mm512_srai_epi32(both, 8)
                                      : _mm512_srai_epi32(_mm512_slli_epi32(both, 24), 24));
    } else {
        const __m512i both = _mm512_cvtepu16_epi32(load256(pairs));
        return _mm512_cvtepi32_ps(odd ? _mm512_srli_epi32(both, 8)
                                      : _mm512_and_si512(both, _mm512_set1_epi32(255)));
    }
}

}  // namespace
}  // namespace puna
