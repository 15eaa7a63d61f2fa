// Pairs of 16-bit integers, whose products AVX-512 adds up twice as fast as those of floats. AVX2, with an instruction
// more and half the registers, gains nothing.
#pragma once
#include "vector/vector.h"

#if defined(__AVX512F__)
namespace puna {
namespace {

// In each lane of a vector of floats, a pair of 16-bit integers, or one integer of 32 bits.
struct Ints {
    __m512i v;

    static PUNA_INLINE Ints splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
    static PUNA_INLINE Ints load(const void* p) { return {_mm512_loadu_si512(p)}; }
    // The pair at `p` in every lane.
    static PUNA_INLINE Ints splat_pair(const void* p) {
        int32_t bits;
        std::memcpy(&bits, p, sizeof bits);
        return splat(bits);
    }
    PUNA_INLINE void store(void* p) const { _mm512_storeu_si512(p, v); }
};
// sum + the products of the first numbers of each pair + those of the second.
PUNA_INLINE Ints add_products(Ints sum, Ints a, Ints b) { return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)}; }
PUNA_INLINE Vec to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
PUNA_INLINE Ints bits_of(Vec a) { return {_mm512_castps_si512(a.v)}; }
PUNA_INLINE Vec from_bits(Ints a) { return {_mm512_castsi512_ps(a.v)}; }
PUNA_INLINE Ints bit_and(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
PUNA_INLINE Ints max(Ints a, Ints b) { return {_mm512_max_epi32(a.v, b.v)}; }
PUNA_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }

// The nearest integers, which fit 16 bits, to products, paired. Near 1.5 * 2^23 floats have whole values only.
PUNA_INLINE Ints pair_of(Vec first, Vec first_factor, Vec second, Vec second_factor) {
    const Vec whole = Vec::splat(0x1.8p23f);
    const __m512i low = bits_of(fma(first, first_factor, whole)).v, high = bits_of(fma(second, second_factor, whole)).v;
    return {_mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16))};
}

// Writes the nearest integers, which fit 16 bits, in order.
PUNA_INLINE void store_words(Vec low, Vec high, void* to) {
    const __m512i packed = _mm512_packs_epi32(_mm512_cvtps_epi32(low.v), _mm512_cvtps_epi32(high.v));
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi64(order, packed));
}

// The largest magnitude of `count` halves, a multiple of 16, as the bits of a half in some lane: NaN > infinity > others.
PUNA_INLINE Ints largest_half_bits(const half* p, int count) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i most = _mm512_setzero_si512();
    int i = 0;
    for (; i + 32 <= count; i += 32) {
        most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(p + i), magnitude));
    }
    if (i < count) {
        const __m512i rest = _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i)));
        most = _mm512_max_epu16(most, _mm512_and_si512(rest, magnitude));
    }
    const __m512i lower = _mm512_and_si512(most, _mm512_set1_epi32(0xffff)), upper = _mm512_srli_epi32(most, 16);
    return {_mm512_max_epu16(lower, upper)};
}

// Halves, in the lower parts of the lanes, as floats.
PUNA_INLINE Vec halves_to_floats(Ints bits) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits.v))}; }

// The largest lanes of four vectors.
PUNA_INLINE __m128i largest_lanes(Ints a, Ints b, Ints c, Ints d) {
    const auto fold = [](Ints x) {
        return _mm256_max_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti64x4_epi64(x.v, 1));
    };
    const auto columns = [](__m256i x, __m256i y) {
        return _mm256_max_epi32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
    };
    const __m256i ab = columns(fold(a), fold(b)), cd = columns(fold(c), fold(d));
    const __m256i all = _mm256_max_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    return _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

// Four quarters of a vector. By way of memory, its load would wait until all four stores are done.
PUNA_INLINE Ints joined(__m128i a, __m128i b, __m128i c, __m128i d) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);
    return {_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)};
}

// The sum of the lanes of each of a vector's width of vectors.
PUNA_INLINE Vec sums_of_lanes(const Vec* v) {
    const auto four = [v](int i) { return _mm_castps_si128(sum_lanes(v[i], v[i + 1], v[i + 2], v[i + 3])); };
    return from_bits(joined(four(0), four(4), four(8), four(12)));
}

// The largest lane of each.
PUNA_INLINE Ints largest_of_lanes(const Ints* v) {
    const auto four = [v](int i) { return largest_lanes(v[i], v[i + 1], v[i + 2], v[i + 3]); };
    return joined(four(0), four(4), four(8), four(12));
}

}  // namespace
}  // namespace puna
#endif
