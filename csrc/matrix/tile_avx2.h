// The pieces the AVX2 kernels are made of.
#pragma once
#include <immintrin.h>

#include "matrix/kernels.h"

namespace puna {
namespace {

constexpr int R = 8;

// A function inlined wherever it is called; a template's arguments choose its shifts at compile time.
#define PUNA_INLINE inline __attribute__((always_inline))

PUNA_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
PUNA_INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
PUNA_INLINE __m256 halves(const void* p) { return _mm256_cvtph_ps(load128(p)); }

PUNA_INLINE __m256i broadcast4(const void* p) {
    int bytes;
    __builtin_memcpy(&bytes, p, 4);
    return _mm256_set1_epi32(bytes);
}

// One stream is read from front to back: the hardware follows it within a page, this carries it over the edge.
constexpr int ahead = 2048;   // bytes: measured, 1024 and 4096 are a few per cent slower
PUNA_INLINE void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// Quads 2g and 2g+1 of a block of nibbles, with their high bits: numbers 0..15, 0..31 or 0..63.
template <class L, int g>
PUNA_INLINE void quads(const uint8_t* low, const uint8_t* high, __m256i& even, __m256i& odd) {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i v = load256(low + 32 * g);
    even = _mm256_and_si256(v, mask);
    odd = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
    if constexpr (L::high_bits == 1) {   // bit q to bit 4
        const __m256i h = load256(high), bit = _mm256_set1_epi8(16);
        const __m256i e = g <= 2 ? _mm256_slli_epi16(h, g <= 2 ? 4 - 2 * g : 0) : _mm256_srli_epi16(h, 2);
        const __m256i o = g <= 1 ? _mm256_slli_epi16(h, g <= 1 ? 3 - 2 * g : 0)
                                 : _mm256_srli_epi16(h, g <= 1 ? 0 : 2 * g - 3);
        even = _mm256_or_si256(even, _mm256_and_si256(e, bit));
        odd = _mm256_or_si256(odd, _mm256_and_si256(o, bit));
    } else if constexpr (L::high_bits == 2) {   // bits 2i, 2i+1 to bits 4, 5
        const __m256i h = load256(high + 32 * (g / 2)), bits = _mm256_set1_epi8(48);
        const __m256i e = g % 2 ? h : _mm256_slli_epi16(h, 4);
        const __m256i o = g % 2 ? _mm256_srli_epi16(h, 2) : _mm256_slli_epi16(h, 2);
        even = _mm256_or_si256(even, _mm256_and_si256(e, bits));
        odd = _mm256_or_si256(odd, _mm256_and_si256(o, bits));
    }
}

// Byte `odd` of each row's pair as two equal 16-bit factors, for multiply-add with 16-bit sums of products.
template <bool is_signed, int odd>
PUNA_INLINE __m256i factors(const uint8_t* pairs) {
    const __m256i both = _mm256_broadcastsi128_si256(load128(pairs));
    constexpr char o = odd, z = -128;
    if constexpr (is_signed) {   // into the high bytes, then down with the sign
        const __m256i at = _mm256_setr_epi8(z, o, z, o, z, 2 + o, z, 2 + o, z, 4 + o, z, 4 + o, z, 6 + o, z, 6 + o,
                                            z, 8 + o, z, 8 + o, z, 10 + o, z, 10 + o, z, 12 + o, z, 12 + o, z,
                                            14 + o, z, 14 + o);
        return _mm256_srai_epi16(_mm256_shuffle_epi8(both, at), 8);
    } else {
        const __m256i at = _mm256_setr_epi8(o, z, o, z, 2 + o, z, 2 + o, z, 4 + o, z, 4 + o, z, 6 + o, z, 6 + o, z,
                                            8 + o, z, 8 + o, z, 10 + o, z, 10 + o, z, 12 + o, z, 12 + o, z, 14 + o,
                                            z, 14 + o, z);
        return _mm256_shuffle_epi8(both, at);
    }
}

}  // namespace
}  // namespace puna
