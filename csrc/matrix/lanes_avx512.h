// AVX-512 with VNNI: 16 rows at a time.
#pragma once
#include <immintrin.h>

#include "matrix/quads.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the "undefined" operands inside its own AVX-512 intrinsics for mistakes of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace puna {
namespace {

struct Avx512 {
    static constexpr int rows = 16;
    static constexpr int tile = 8;   // 8 sums, 8 parts, 8 totals and the numbers fit the 32 registers
    static constexpr int float_tile = 8;
    static constexpr bool signed_bytes = false;
    using Bytes = __m512i;
    using Ints = __m512i;
    using Floats = __m512;
    using Sum = Floats;

    // --- bytes ---
    static PUNA_INLINE Bytes load(const void* p) { return _mm512_loadu_si512(p); }
    static PUNA_INLINE __m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    template <int n>
    static PUNA_INLINE Bytes shift_left(Bytes v) {   // bits that cross into a neighbour are masked away later
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

    // --- integers ---
    static PUNA_INLINE Ints splat(int32_t x) { return _mm512_set1_epi32(x); }
    template <int n>
    static PUNA_INLINE Ints shift_ints_left(Ints v) { return _mm512_slli_epi32(v, n); }
    template <bool is_signed>
    static PUNA_INLINE Ints widen(const uint8_t* pairs) {   // [rows][2] bytes to 16 bits
        return is_signed ? _mm512_cvtepi8_epi16(load_half(pairs)) : _mm512_cvtepu8_epi16(load_half(pairs));
    }
    static PUNA_INLINE Ints add_pairs(Ints sum, Ints pairs, const int16_t* with) {
        return _mm512_dpwssd_epi32(sum, pairs, broadcast4(with));
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

// As above, with integer sums over a chunk: what AMX tiles come to.
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
