// AVX2, FMA and F16C: 8 rows at a time, with shortcuts for AVX-VNNI.
#pragma once
#include <immintrin.h>

#include "matrix/point_digits.h"
#include "matrix/quads.h"

namespace puna {
namespace {

struct Avx2 {
    static constexpr int rows = 8;
    static constexpr int tile = 8;   // parts in registers; sums, which fewer instructions use, in memory
    static constexpr int groups = 2;
    static constexpr int grouped_tile(int) { return 4; }   // 8 parts fit
    static constexpr int expanded_groups = 3;
    static constexpr int expanded_tile(int groups) { return groups == 1 ? tile : groups == 2 ? 4 : 3; }   // 9 parts fit
    static constexpr bool expands(Layout layout) {
        return layout == Layout::q4_k || layout == Layout::q5_k || layout == Layout::q6_k || layout == Layout::q3_k;
    }
    static constexpr int expanded_from = 48;
    static constexpr int word_tile = 4;
    static constexpr int float_tile = 4;
    static constexpr bool signed_bytes = true;
    static constexpr bool starts = false;
    using Bytes = __m256i;
    using Ints = __m256i;
    using Floats = __m256;
    using Sum = Ints;

    // --- bytes ---
    static PUNA_INLINE Bytes load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    static PUNA_INLINE __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
    template <int n>
    static PUNA_INLINE Bytes shift_left(Bytes v) {   // bits that cross into a neighbour are masked off later
        if constexpr (n > 0) return _mm256_slli_epi16(v, n);
        else if constexpr (n < 0) return _mm256_srli_epi16(v, -n);
        else return v;
    }
    template <int bits>
    static PUNA_INLINE Bytes bit_and(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(bits)); }
    static PUNA_INLINE Bytes bit_or(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
    static PUNA_INLINE Bytes flip_top_bits(Bytes v) { return _mm256_xor_si256(v, _mm256_set1_epi8(-128)); }
    static PUNA_INLINE Bytes lookup(Bytes v, const uint8_t* table) {
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_half(table)), v);
    }
    static PUNA_INLINE Bytes broadcast4(const void* p) {
        int bytes;
        __builtin_memcpy(&bytes, p, 4);
        return _mm256_set1_epi32(bytes);
    }

    static PUNA_INLINE void store_bytes(uint8_t* p, Bytes v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
    }

    // --- points ---
    // The digits of the points that each row's first and second index select: quads of columns.
    template <Grid grid>
    static PUNA_INLINE void look_up(const PointTable& table, Ints first, Ints second, Bytes* quads) {
        look_up_point<Avx2, grid>(table, first, quads);
        look_up_point<Avx2, grid>(table, second, quads + shape_of(grid).coordinates / 4);
    }
    static PUNA_INLINE Ints gather(const uint32_t* from, Ints indices) {
        return _mm256_i32gather_epi32(reinterpret_cast<const int*>(from), indices, 4);
    }
    static PUNA_INLINE Bytes as_bytes(Ints v) { return v; }

    // --- integers ---
    template <int bytes>
    static PUNA_INLINE Ints load_words(const uint8_t* p) {   // [rows] unsigned words of `bytes` bytes
        if constexpr (bytes == 1) return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        else if constexpr (bytes == 2) return _mm256_cvtepu16_epi32(load_half(p));
        else return load(p);
    }
    template <int n>
    static PUNA_INLINE Ints shift_ints_right(Ints v) { return _mm256_srli_epi32(v, n); }
    template <int n>
    static PUNA_INLINE Ints shift_signed_right(Ints v) { return _mm256_srai_epi32(v, n); }
    static PUNA_INLINE Ints int_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
    static PUNA_INLINE Ints int_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
    static PUNA_INLINE Ints splat(int32_t x) { return _mm256_set1_epi32(x); }
    template <int n>
    static PUNA_INLINE Ints shift_ints_left(Ints v) { return _mm256_slli_epi32(v, n); }
    template <bool is_signed>
    static PUNA_INLINE Ints widen(const uint8_t* pairs) {   // [rows][2] bytes widened to 16 bits
        return is_signed ? _mm256_cvtepi8_epi16(load_half(pairs)) : _mm256_cvtepu8_epi16(load_half(pairs));
    }
    static PUNA_INLINE Ints add_pairs(Ints sum, Ints pairs, const int16_t* with) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, broadcast4(with)));
    }

    static PUNA_INLINE Ints add_pairs(Ints sum, Ints pairs, Ints with) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, with));
    }
    static PUNA_INLINE Ints load_ints(const int32_t* p) { return load(p); }
    static PUNA_INLINE void store_ints(int32_t* p, Ints v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
    // The nearest integers to products, which fit 16 bits, in the lower and upper halves. Near 1.5 * 2^23 floats have
    // whole values only.
    static PUNA_INLINE Ints words_of(Floats low, Floats high, Floats factor) {
        const __m256 whole = _mm256_set1_ps(0x1.8p23f);
        const __m256i below = _mm256_castps_si256(_mm256_fmadd_ps(low, factor, whole));
        const __m256i above = _mm256_castps_si256(_mm256_fmadd_ps(high, factor, whole));
        return _mm256_blend_epi16(below, _mm256_slli_epi32(above, 16), 0xaa);
    }

    // --- floats ---
    static PUNA_INLINE Floats splat(float x) { return _mm256_set1_ps(x); }
    static PUNA_INLINE Floats load_floats(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
    static PUNA_INLINE Floats load_halves(const void* p) { return _mm256_cvtph_ps(load_half(p)); }
    static PUNA_INLINE Floats load_bfloats(const void* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p)), 16));
    }
    static PUNA_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
    static PUNA_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static PUNA_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static PUNA_INLINE Floats neg_mul_add(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
    static PUNA_INLINE Floats to_floats(Ints v) { return _mm256_cvtepi32_ps(v); }
    static PUNA_INLINE Floats reciprocal(Floats v) { return _mm256_div_ps(_mm256_set1_ps(1), v); }
    static PUNA_INLINE void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }

    // --- sums over a chunk: integers, exact whatever their order ---
    static PUNA_INLINE Sum zero_sum() { return _mm256_setzero_si256(); }
    static PUNA_INLINE Sum sub(Sum a, Ints b) { return _mm256_sub_epi32(a, b); }

    // Byte `odd` of each row's pair as two equal 16-bit factors.
    template <bool is_signed, int odd>
    static PUNA_INLINE Ints factors16(const uint8_t* pairs) {
        const __m256i both = _mm256_broadcastsi128_si256(load_half(pairs));
        constexpr char o = odd, z = -128;
        if constexpr (is_signed) {   // shifted into the high bytes, then down with the sign
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

    // Byte `odd` of each row's pair as a 32-bit factor.
    template <bool is_signed, int odd>
    static PUNA_INLINE Ints factors32(const uint8_t* pairs) {
        const Ints both = _mm256_cvtepi16_epi32(load_half(pairs));
        if constexpr (is_signed) {
            return odd ? _mm256_srai_epi32(both, 8) : _mm256_srai_epi32(_mm256_slli_epi32(both, 24), 24);
        } else {
            return _mm256_and_si256(odd ? _mm256_srli_epi32(both, 8) : both, _mm256_set1_epi32(255));
        }
    }

    // Common parts of Products with 32-bit Parts.
    struct WideParts {
        static constexpr int chain = 8;
        using Part = Ints;
        static PUNA_INLINE Part zero() { return _mm256_setzero_si256(); }
        static PUNA_INLINE Part from(Ints sum) { return sum; }
        static PUNA_INLINE Ints to(Part part, Ints) { return part; }
        template <bool is_signed, int odd>
        static PUNA_INLINE Ints scale(const uint8_t* pairs) { return factors32<is_signed, odd>(pairs); }
        static PUNA_INLINE Sum add_scaled(Sum sum, Part part, Ints scale) {
            return _mm256_add_epi32(sum, _mm256_mullo_epi32(part, scale));
        }
    };

    // maddubs adds two adjacent products in 16 bits; how many fit depends on the size of the numbers: 15 * 127 * 2 * 8,
    // 31 * 127 * 2 * 4, 63 * 127 * 2 * 2 and 127 * 127 * 2 are all below 32768.
    template <int bits>
    struct Products {
        static constexpr int chain = bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
        using Part = Ints;   // sixteen 16-bit sums
        static PUNA_INLINE Bytes prepare(Bytes numbers) { return numbers; }
        static PUNA_INLINE Part zero() { return _mm256_setzero_si256(); }
        static PUNA_INLINE Part from(Ints) { return zero(); }
        static PUNA_INLINE Part add(Part part, Bytes numbers, const int8_t* x) {
            part = _mm256_add_epi16(part, _mm256_maddubs_epi16(numbers, broadcast4(x)));
            keep(part);
            return part;
        }
        static PUNA_INLINE Ints to(Part part, Ints sum) {
            return _mm256_add_epi32(sum, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
        }
        template <bool is_signed, int odd>
        static PUNA_INLINE Ints scale(const uint8_t* pairs) { return factors16<is_signed, odd>(pairs); }
        static PUNA_INLINE Sum add_scaled(Sum sum, Part part, Ints scale) {
            return _mm256_add_epi32(sum, _mm256_madd_epi16(part, scale));
        }
    };
};

// Signed bytes: |w| times x with w's sign is at most 128 * 127 * 2 and just fits 16 bits.
template <>
struct Avx2::Products<8> : Avx2::WideParts {
    struct Numbers {
        Bytes with_sign, magnitude;
    };
    static PUNA_INLINE Numbers prepare(Bytes numbers) { return {numbers, _mm256_abs_epi8(numbers)}; }
    static PUNA_INLINE Part add(Part part, Numbers numbers, const int8_t* x) {
        const __m256i signed_x = _mm256_sign_epi8(broadcast4(x), numbers.with_sign);
        const __m256i twos = _mm256_maddubs_epi16(numbers.magnitude, signed_x);
        part = _mm256_add_epi32(part, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
        keep(part);
        return part;
    }
};

#if defined(__AVXVNNI__)
// One instruction multiplies four unsigned numbers by activations and adds them in 32 bits.
struct AvxVnni : Avx2 {
    static constexpr int tile = 4;   // 4 sums, 4 parts, 4 totals and the numbers fill the 16 registers
    static constexpr int groups = 1;
    static constexpr int grouped_tile(int tokens) { return tokens; }
    static constexpr int expanded_groups = 1;
    static constexpr int expanded_tile(int) { return tile; }
    static constexpr bool expands(Layout) { return false; }
    static constexpr bool starts = true;
    static constexpr bool signed_bytes = false;

    static PUNA_INLINE Ints add_pairs(Ints sum, Ints pairs, const int16_t* with) {
        return _mm256_dpwssd_avx_epi32(sum, pairs, broadcast4(with));
    }

    template <int bits>
    struct Products : WideParts {
        static PUNA_INLINE Bytes prepare(Bytes numbers) { return numbers; }
        static PUNA_INLINE Part add(Part part, Bytes numbers, const int8_t* x) {
            return _mm256_dpbusd_avx_epi32(part, numbers, broadcast4(x));
        }
    };
};
#endif

}  // namespace
}  // namespace puna
