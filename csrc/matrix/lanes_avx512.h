// AVX-512 with VNNI: 16 rows at a time.
#pragma once
#include <immintrin.h>

#include "matrix/point_digits.h"
#include "matrix/quads.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 mistakes the "undefined" operands of its own AVX-512 intrinsics for our errors.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace puna {
namespace {

struct Avx512 {
    static constexpr int rows = 16;
    static constexpr int tile = 8;   // 8 sums, 8 parts, 8 totals and the numbers fit the 32 registers
    static constexpr int groups = 2;   // totals are then in memory, which costs less than loading activations twice
    static constexpr int grouped_tile(int tokens) { return tokens; }
    static constexpr int expanded_groups = 3;
    static constexpr int expanded_tile(int groups) { return groups == 1 ? tile : 12 / groups; }   // 12 sums and parts fit
    static constexpr bool expands(Layout layout) {   // whose bits lie in two planes
        return layout == Layout::q5_k || layout == Layout::q6_k || layout == Layout::q3_k;
    }
    static constexpr int expanded_from = 96;
    static constexpr int float_tile = 8;
    static constexpr int word_tile = 8;
    static constexpr bool signed_bytes = false;
    static constexpr bool starts = true;
    using Bytes = __m512i;
    using Ints = __m512i;
    using Floats = __m512;
    using Sum = Floats;

    // --- bytes ---
    static PUNA_INLINE Bytes load(const void* p) { return _mm512_loadu_si512(p); }
    static PUNA_INLINE __m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    template <int n>
    static PUNA_INLINE Bytes shift_left(Bytes v) {   // bits that cross into a neighbour are masked off later
        if constexpr (n > 0) return _mm512_slli_epi16(v, n);
        else if constexpr (n < 0) return _mm512_srli_epi16(v, -n);
        else return v;
    }
    template <int bits>
    static PUNA_INLINE Bytes bit_and(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(bits)); }
    static PUNA_INLINE Bytes bit_or(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
    static PUNA_INLINE Bytes flip_top_bits(Bytes v) { return _mm512_xor_si512(v, _mm512_set1_epi8(-128)); }
    static PUNA_INLINE Bytes lookup(Bytes v, const uint8_t* table) {
        const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), v);
    }
    static PUNA_INLINE Bytes broadcast4(const void* p) {
        int bytes;
        __builtin_memcpy(&bytes, p, 4);
        return _mm512_set1_epi32(bytes);
    }

    static PUNA_INLINE void store_bytes(uint8_t* p, Bytes v) { _mm512_storeu_si512(p, v); }

    // --- points ---
    // The digits of the points that each row's first and second index select: quads of columns. Measured for up to 1024
    // points: register permutations are up to five times as fast as gathers.
    template <Grid grid>
    static PUNA_INLINE void look_up(const PointTable& table, Ints first, Ints second, Bytes* quads) {
        constexpr GridShape shape = shape_of(grid);
        constexpr int each = shape.coordinates / 4;
        if constexpr (shape.index_bits > 10) {
            look_up_point<Avx512, grid>(table, first, quads);
            look_up_point<Avx512, grid>(table, second, quads + each);
        } else {
            const Ints both = entry<1 << shape.index_bits>(table.pairs, int_or(first, _mm512_slli_epi32(second, 16)));
            // Either half of each 32 bits, twice: the upper copy is shifted further.
            const __m512i lower = _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
            const Ints of_first = _mm512_shuffle_epi8(both, lower);
            const Ints of_second = _mm512_shuffle_epi8(both, _mm512_or_si512(lower, _mm512_set1_epi8(2)));
            for (int q = 0; q < each; q++) {
                const Ints shifts = _mm512_set1_epi32(shape.coordinates == 4 ? 4 << 16 : (4 * q + 2) << 16 | 4 * q);
                quads[q] = bit_and<(1 << shape.digit_bits) - 1>(_mm512_srlv_epi16(of_first, shifts));
                quads[each + q] = bit_and<(1 << shape.digit_bits) - 1>(_mm512_srlv_epi16(of_second, shifts));
            }
        }
    }
    // The 16-bit entries that 16-bit indices select.
    template <int count>
    static PUNA_INLINE Ints entry(const uint16_t* entries, Ints indices) {
        if constexpr (count == 64) {
            return _mm512_permutex2var_epi16(load(entries), indices, load(entries + 32));
        } else {
            constexpr int half = count / 2;
            const Ints below = entry<half>(entries, indices), above = entry<half>(entries + half, indices);
            return _mm512_mask_blend_epi16(_mm512_test_epi16_mask(indices, _mm512_set1_epi16(half)), below, above);
        }
    }
    static PUNA_INLINE Ints gather(const uint32_t* from, Ints indices) {
        return _mm512_i32gather_epi32(indices, from, 4);
    }
    static PUNA_INLINE Bytes as_bytes(Ints v) { return v; }

    // --- integers ---
    template <int bytes>
    static PUNA_INLINE Ints load_words(const uint8_t* p) {   // [rows] unsigned words of `bytes` bytes
        if constexpr (bytes == 1) return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        else if constexpr (bytes == 2) return _mm512_cvtepu16_epi32(load_half(p));
        else return load(p);
    }
    template <int n>
    static PUNA_INLINE Ints shift_ints_right(Ints v) { return _mm512_srli_epi32(v, n); }
    template <int n>
    static PUNA_INLINE Ints shift_signed_right(Ints v) { return _mm512_srai_epi32(v, n); }
    static PUNA_INLINE Ints int_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
    static PUNA_INLINE Ints int_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
    static PUNA_INLINE Ints splat(int32_t x) { return _mm512_set1_epi32(x); }
    template <int n>
    static PUNA_INLINE Ints shift_ints_left(Ints v) { return _mm512_slli_epi32(v, n); }
    template <bool is_signed>
    static PUNA_INLINE Ints widen(const uint8_t* pairs) {   // [rows][2] bytes widened to 16 bits
        return is_signed ? _mm512_cvtepi8_epi16(load_half(pairs)) : _mm512_cvtepu8_epi16(load_half(pairs));
    }
    static PUNA_INLINE Ints add_pairs(Ints sum, Ints pairs, const int16_t* with) {
        return _mm512_dpwssd_epi32(sum, pairs, broadcast4(with));
    }
    static PUNA_INLINE Ints add_pairs(Ints sum, Ints pairs, Ints with) { return _mm512_dpwssd_epi32(sum, pairs, with); }
    static PUNA_INLINE Ints load_ints(const int32_t* p) { return load(p); }
    static PUNA_INLINE void store_ints(int32_t* p, Ints v) { _mm512_store_si512(p, v); }
    // The nearest integers to products, which fit 16 bits, in the lower and upper halves. Near 1.5 * 2^23 floats have
    // whole values only.
    static PUNA_INLINE Ints words_of(Floats low, Floats high, Floats factor) {
        const __m512 whole = _mm512_set1_ps(0x1.8p23f);
        const __m512i below = _mm512_castps_si512(_mm512_fmadd_ps(low, factor, whole));
        const __m512i above = _mm512_castps_si512(_mm512_fmadd_ps(high, factor, whole));
        return _mm512_mask_blend_epi16(0xaaaaaaaa, below, _mm512_slli_epi32(above, 16));
    }

    // --- floats ---
    static PUNA_INLINE Floats splat(float x) { return _mm512_set1_ps(x); }
    static PUNA_INLINE Floats load_floats(const void* p) { return _mm512_loadu_ps(p); }
    static PUNA_INLINE Floats load_halves(const void* p) { return _mm512_cvtph_ps(load_half(p)); }
    static PUNA_INLINE Floats load_bfloats(const void* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(p)), 16));
    }
    static PUNA_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static PUNA_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static PUNA_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static PUNA_INLINE Floats neg_mul_add(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
    static PUNA_INLINE Floats to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
    static PUNA_INLINE Floats to_floats(Floats v) { return v; }
    static PUNA_INLINE Floats reciprocal(Floats v) { return _mm512_div_ps(_mm512_set1_ps(1), v); }
    static PUNA_INLINE void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }

    // --- sums over a chunk: floats, since multiplying 32-bit integers costs more. A part is exact as a float
    // (at most 63 * 127 * 32), and parts are added in the order of their columns. ---
    static PUNA_INLINE Sum zero_sum() { return _mm512_setzero_ps(); }
    static PUNA_INLINE Sum sub(Sum a, Ints b) { return _mm512_sub_ps(a, _mm512_cvtepi32_ps(b)); }

    // Byte `odd` of each row's pair as a 32-bit factor.
    template <bool is_signed, int odd>
    static PUNA_INLINE Ints factors32(const uint8_t* pairs) {
        const Ints both = _mm512_cvtepi16_epi32(load_half(pairs));
        if constexpr (is_signed) {
            return odd ? _mm512_srai_epi32(both, 8) : _mm512_srai_epi32(_mm512_slli_epi32(both, 24), 24);
        } else {
            return _mm512_and_si512(odd ? _mm512_srli_epi32(both, 8) : both, _mm512_set1_epi32(255));
        }
    }

    template <int bits>
    struct Products {
        static constexpr int chain = 8;
        using Part = Ints;
        static PUNA_INLINE Bytes prepare(Bytes numbers) { return numbers; }
        static PUNA_INLINE Part zero() { return _mm512_setzero_si512(); }
        static PUNA_INLINE Part from(Ints sum) { return sum; }
        static PUNA_INLINE Part add(Part part, Bytes numbers, const int8_t* x) {
            return _mm512_dpbusd_epi32(part, numbers, broadcast4(x));
        }
        static PUNA_INLINE Ints to(Part part, Ints) { return part; }
        template <bool is_signed, int odd>
        static PUNA_INLINE Floats scale(const uint8_t* pairs) {
            return _mm512_cvtepi32_ps(factors32<is_signed, odd>(pairs));
        }
        static PUNA_INLINE Sum add_scaled(Sum sum, Part part, Floats scale) {
            return _mm512_fmadd_ps(_mm512_cvtepi32_ps(part), scale, sum);
        }
    };
};

// As above, with integer sums over a chunk, as AMX tiles compute them.
struct Avx512Exact : Avx512 {
    using Sum = Ints;

    static PUNA_INLINE Sum zero_sum() { return _mm512_setzero_si512(); }
    static PUNA_INLINE Sum sub(Sum a, Ints b) { return _mm512_sub_epi32(a, b); }

    template <int bits>
    struct Products : Avx512::Products<bits> {
        template <bool is_signed, int odd>
        static PUNA_INLINE Ints scale(const uint8_t* pairs) { return factors32<is_signed, odd>(pairs); }
        static PUNA_INLINE Sum add_scaled(Sum sum, Ints part, Ints scale) {
            return _mm512_add_epi32(sum, _mm512_mullo_epi32(part, scale));
        }
    };
};

}  // namespace
}  // namespace puna
