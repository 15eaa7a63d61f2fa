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

// The largest magnitude of every 32nd of `count` halves, a multiple of 16, as bits: NaN > infinity > others.
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
PUNA_INLINE Ints folded_quarters(Ints a, Ints b, Ints c, Ints d, Fold fold) {
    const auto halves = [&](Ints x, Ints y) {
        return fold(Ints{_mm512_shuffle_i32x4(x.v, y.v, 0x44)}, Ints{_mm512_shuffle_i32x4(x.v, y.v, 0xee)});
    };
    const Ints ab = halves(a, b), cd = halves(c, d);
    return fold(Ints{_mm512_shuffle_i32x4(ab.v, cd.v, 0x88)}, Ints{_mm512_shuffle_i32x4(ab.v, cd.v, 0xdd)});
}

// Folds the halves of each quarter of two vectors, whose lanes alternate in the result.
template <class Fold>
PUNA_INLINE Ints folded_lanes(Ints a, Ints b, Fold fold) {
    return fold(Ints{_mm512_unpacklo_epi32(a.v, b.v)}, Ints{_mm512_unpackhi_epi32(a.v, b.v)});
}
// The same with pairs of lanes that alternate.
template <class Fold>
PUNA_INLINE Ints folded_pairs(Ints a, Ints b, Fold fold) {
    return fold(Ints{_mm512_unpacklo_epi64(a.v, b.v)}, Ints{_mm512_unpackhi_epi64(a.v, b.v)});
}

// Folds the lanes of each of a vector's width of vectors into the lane of its number. at(i) gives a vector.
template <class At, class Fold>
PUNA_INLINE Ints folded(At at, Fold fold) {
    const auto four = [&](int i) {
        return folded_pairs(folded_lanes(at(i), at(i + 1), fold), folded_lanes(at(i + 2), at(i + 3), fold), fold);
    };
    return folded_quarters(four(0), four(4), four(8), four(12), fold);
}

// The sum of the lanes of each of a vector's width of vectors.
PUNA_INLINE Vec sums_of_lanes(const Vec* v) {
    return from_bits(folded([v](int i) { return bits_of(v[i]); },
                            [](Ints a, Ints b) { return bits_of(from_bits(a) + from_bits(b)); }));
}

// The largest lane of each.
PUNA_INLINE Ints largest_of_lanes(const Ints* v) {
    return folded([v](int i) { return v[i]; }, [](Ints a, Ints b) { return max(a, b); });
}

// The largest of the 32 halves in each, none of which is negative.
PUNA_INLINE Vec largest_halves(const Ints* v) {
    const auto larger = [](Ints a, Ints b) { return Ints{_mm512_max_epu16(a.v, b.v)}; };
    const auto two = [&](const Ints* w) {
        return larger({_mm512_unpacklo_epi16(w[0].v, w[1].v)}, {_mm512_unpackhi_epi16(w[0].v, w[1].v)});
    };
    const auto eight = [&](const Ints* w) {
        return folded_pairs(folded_lanes(two(w), two(w + 2), larger), folded_lanes(two(w + 4), two(w + 6), larger),
                            larger);
    };
    const Ints none = Ints::splat(0), all = folded_quarters(eight(v), eight(v + 8), none, none, larger);
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(all.v))};
}

}  // namespace
}  // namespace puna
#endif
