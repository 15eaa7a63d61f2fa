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

// The largest magnitudes of every 32nd of `count` halves, a multiple of 16: NaN > infinity > others.
PUNA_INLINE Ints largest_half_magnitudes(const half* p, int count) {
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
    return {most};
}

// Folds the quarters of each of four vectors into one, and joins the four.
template <class Fold>
PUNA_INLINE __m512i folded_quarters(__m512i a, __m512i b, __m512i c, __m512i d, Fold fold) {
    const auto halves = [&](__m512i x, __m512i y) {
        return fold(_mm512_shuffle_i32x4(x, y, 0x44), _mm512_shuffle_i32x4(x, y, 0xee));
    };
    const __m512i ab = halves(a, b), cd = halves(c, d);
    return fold(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

// Folds the lanes of each of 16 vectors into the lane of its number.
template <class Fold>
PUNA_INLINE __m512i folded_lanes(const __m512i* v, Fold fold) {
    const auto pair = [&](__m512i x, __m512i y) {
        return fold(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
    };
    const auto four = [&](const __m512i* w) {
        const __m512i ab = pair(w[0], w[1]), cd = pair(w[2], w[3]);
        return fold(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    };
    return folded_quarters(four(v), four(v + 4), four(v + 8), four(v + 12), fold);
}

// The sum of the lanes of each of a vector's width of vectors.
PUNA_INLINE Vec sums_of_lanes(const Vec* v) {
    __m512i bits[Vec::width];
    for (int i = 0; i < Vec::width; i++) bits[i] = bits_of(v[i]).v;
    return from_bits({folded_lanes(bits, [](__m512i a, __m512i b) {
        return _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
    })});
}

// The largest lane of each.
PUNA_INLINE Ints largest_of_lanes(const Ints* v) {
    __m512i bits[Vec::width];
    for (int i = 0; i < Vec::width; i++) bits[i] = v[i].v;
    return {folded_lanes(bits, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); })};
}

// The largest of the 32 halves in each, none of which is negative.
PUNA_INLINE Vec largest_halves(const Ints* v) {
    const auto larger = [](__m512i a, __m512i b) { return _mm512_max_epu16(a, b); };
    const auto two = [&](const Ints* w) {
        return larger(_mm512_unpacklo_epi16(w[0].v, w[1].v), _mm512_unpackhi_epi16(w[0].v, w[1].v));
    };
    const auto four = [&](const Ints* w) {
        const __m512i ab = two(w), cd = two(w + 2);
        return larger(_mm512_unpacklo_epi32(ab, cd), _mm512_unpackhi_epi32(ab, cd));
    };
    const auto eight = [&](const Ints* w) {
        const __m512i low = four(w), high = four(w + 4);
        return larger(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    };
    const __m512i none = _mm512_setzero_si512(), all = folded_quarters(eight(v), eight(v + 8), none, none, larger);
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(all))};
}

}  // namespace
}  // namespace puna
#endif
