// NEON: 8 rows at a time, in two registers, with shortcuts for the dot product of bytes.
#pragma once
#include <arm_neon.h>

#include "matrix/point_digits.h"
#include "matrix/quads.h"

namespace puna {
namespace {

// Two registers: the first half of the rows, and the second.
template <class Register>
struct Both {
    Register low, high;
};

struct Neon {
    static constexpr int rows = 8;
    static constexpr int tile = 3;   // 6 sums, 12 parts, 6 totals and the numbers fit the 32 registers
    static constexpr int groups = 1;
    static constexpr int grouped_tile(int tokens) { return tokens; }
    static constexpr int expanded_groups = 1;
    static constexpr int expanded_tile(int) { return tile; }
    static constexpr bool expands(Layout) { return false; }
    static constexpr int float_tile = 4;
    static constexpr bool signed_bytes = true;
    static constexpr bool starts = false;
    using Bytes = Both<uint8x16_t>;
    using Ints = Both<int32x4_t>;
    using Floats = Both<float32x4_t>;
    using Sum = Ints;

    // --- bytes ---
    static PUNA_INLINE Bytes load(const void* p) {
        const auto* bytes = static_cast<const uint8_t*>(p);
        return {vld1q_u8(bytes), vld1q_u8(bytes + 16)};
    }
    template <int n>
    static PUNA_INLINE Bytes shift_left(Bytes v) {
        if constexpr (n > 0) return {vshlq_n_u8(v.low, n), vshlq_n_u8(v.high, n)};
        else if constexpr (n < 0) return {vshrq_n_u8(v.low, -n), vshrq_n_u8(v.high, -n)};
        else return v;
    }
    template <int bits>
    static PUNA_INLINE Bytes bit_and(Bytes v) {
        const uint8x16_t mask = vdupq_n_u8(bits);
        return {vandq_u8(v.low, mask), vandq_u8(v.high, mask)};
    }
    static PUNA_INLINE Bytes bit_or(Bytes a, Bytes b) { return {vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high)}; }
    static PUNA_INLINE Bytes lookup(Bytes v, const uint8_t* table) {
        const uint8x16_t entries = vld1q_u8(table);
        return {vqtbl1q_u8(entries, v.low), vqtbl1q_u8(entries, v.high)};
    }
    static PUNA_INLINE int8x16_t broadcast4(const int8_t* p) {
        int32_t bytes;
        __builtin_memcpy(&bytes, p, 4);
        return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
    }

    static PUNA_INLINE void store_bytes(uint8_t* p, Bytes v) { vst1q_u8(p, v.low), vst1q_u8(p + 16, v.high); }

    // --- points ---
    // The digits of the points that each row's first and second index select: quads of columns.
    template <Grid grid>
    static PUNA_INLINE void look_up(const PointTable& table, Ints first, Ints second, Bytes* quads) {
        look_up_point<Neon, grid>(table, first, quads);
        look_up_point<Neon, grid>(table, second, quads + shape_of(grid).coordinates / 4);
    }
    static PUNA_INLINE Ints gather(const uint32_t* from, Ints indices) {
        int32_t at[rows], found[rows];
        vst1q_s32(at, indices.low), vst1q_s32(at + 4, indices.high);
        for (int r = 0; r < rows; r++) found[r] = static_cast<int32_t>(from[at[r]]);
        return {vld1q_s32(found), vld1q_s32(found + 4)};
    }
    static PUNA_INLINE Bytes as_bytes(Ints v) { return {vreinterpretq_u8_s32(v.low), vreinterpretq_u8_s32(v.high)}; }

    // --- integers ---
    template <int bytes>
    static PUNA_INLINE Ints load_words(const uint8_t* p) {   // [rows] unsigned words of `bytes` bytes
        if constexpr (bytes == 4) {
            const Bytes words = load(p);
            return {vreinterpretq_s32_u8(words.low), vreinterpretq_s32_u8(words.high)};
        } else {
            uint16x8_t words;
            if constexpr (bytes == 1) words = vmovl_u8(vld1_u8(p));
            else words = load_16(p);
            return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words))),
                    vreinterpretq_s32_u32(vmovl_high_u16(words))};
        }
    }
    template <int n>
    static PUNA_INLINE Ints shift_ints_right(Ints v) {
        if constexpr (n == 0) return v;
        else return {shifted_right<n>(v.low), shifted_right<n>(v.high)};
    }
    template <int n>
    static PUNA_INLINE int32x4_t shifted_right(int32x4_t v) {
        return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(v), n));
    }
    template <int n>
    static PUNA_INLINE Ints shift_signed_right(Ints v) { return {vshrq_n_s32(v.low, n), vshrq_n_s32(v.high, n)}; }
    static PUNA_INLINE Ints int_and(Ints a, Ints b) { return {vandq_s32(a.low, b.low), vandq_s32(a.high, b.high)}; }
    static PUNA_INLINE Ints int_or(Ints a, Ints b) { return {vorrq_s32(a.low, b.low), vorrq_s32(a.high, b.high)}; }
    static PUNA_INLINE Ints splat(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
    template <int n>
    static PUNA_INLINE Ints shift_ints_left(Ints v) { return {vshlq_n_s32(v.low, n), vshlq_n_s32(v.high, n)}; }
    static PUNA_INLINE Ints add(Ints a, Ints b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
    template <bool is_signed>
    static PUNA_INLINE Both<int16x8_t> widen(const uint8_t* pairs) {   // [rows][2] bytes widened to 16 bits
        const uint8x16_t bytes = vld1q_u8(pairs);
        if constexpr (is_signed) {
            const int8x16_t v = vreinterpretq_s8_u8(bytes);
            return {vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v)};
        } else {
            return {vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))), vreinterpretq_s16_u16(vmovl_high_u8(bytes))};
        }
    }
    static PUNA_INLINE Ints add_pairs(Ints sum, Both<int16x8_t> pairs, const int16_t* with) {
        int32_t two;
        __builtin_memcpy(&two, with, 4);
        const int16x8_t factors = vreinterpretq_s16_s32(vdupq_n_s32(two));
        const auto products = [&](int16x8_t v) {
            return vpaddq_s32(vmull_s16(vget_low_s16(v), vget_low_s16(factors)), vmull_high_s16(v, factors));
        };
        return add(sum, {products(pairs.low), products(pairs.high)});
    }

    // --- floats ---
    static PUNA_INLINE Floats splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
    static PUNA_INLINE Floats load_floats(const void* p) {
        const auto* numbers = static_cast<const float*>(p);
        return {vld1q_f32(numbers), vld1q_f32(numbers + 4)};
    }
    static PUNA_INLINE uint16x8_t load_16(const void* p) {
        return vreinterpretq_u16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
    }
    static PUNA_INLINE Floats load_halves(const void* p) {
        const float16x8_t numbers = vreinterpretq_f16_u16(load_16(p));
        return {vcvt_f32_f16(vget_low_f16(numbers)), vcvt_high_f32_f16(numbers)};
    }
    static PUNA_INLINE Floats load_bfloats(const void* p) {
        const uint16x8_t numbers = load_16(p);
        return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(numbers), 16)),
                vreinterpretq_f32_u32(vshll_high_n_u16(numbers, 16))};
    }
    static PUNA_INLINE Floats add(Floats a, Floats b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
    static PUNA_INLINE Floats mul(Floats a, Floats b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
    static PUNA_INLINE Floats mul_add(Floats a, Floats b, Floats c) {
        return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
    }
    static PUNA_INLINE Floats neg_mul_add(Floats a, Floats b, Floats c) {
        return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
    }
    static PUNA_INLINE Floats to_floats(Ints v) { return {vcvtq_f32_s32(v.low), vcvtq_f32_s32(v.high)}; }
    static PUNA_INLINE void store(float* p, Floats v) { vst1q_f32(p, v.low), vst1q_f32(p + 4, v.high); }

    // --- sums over a chunk: integers, exact whatever their order ---
    static PUNA_INLINE Sum zero_sum() { return splat(0); }
    static PUNA_INLINE Sum sub(Sum a, Ints b) { return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)}; }

    // Common parts of this set's Products: a scale is byte `odd` of each row's pair as a 32-bit factor.
    struct Scaled {
        template <bool is_signed, int odd>
        static PUNA_INLINE Ints scale(const uint8_t* pairs) {
            if constexpr (is_signed) {
                const int16x8_t both = vreinterpretq_s16_u8(vld1q_u8(pairs));
                const int16x8_t one = vshrq_n_s16(odd ? both : vshlq_n_s16(both, 8), 8);
                return {vmovl_s16(vget_low_s16(one)), vmovl_high_s16(one)};
            } else {
                const uint16x8_t both = load_16(pairs);
                const uint16x8_t one = odd ? vshrq_n_u16(both, 8) : vandq_u16(both, vdupq_n_u16(255));
                return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(one))),
                        vreinterpretq_s32_u32(vmovl_high_u16(one))};
            }
        }
        static PUNA_INLINE Sum scaled(Sum sum, Ints part, Ints scale) {
            return {vmlaq_s32(sum.low, part.low, scale.low), vmlaq_s32(sum.high, part.high, scale.high)};
        }
    };

    // Products are added column by column in 16 bits; how many fit depends on the size of the numbers: 31 * 127 * 8, 63
    // * 127 * 4 and 128 * 127 * 2 are all below 32768.
    template <int bits>
    struct Products : Scaled {
        static constexpr int chain = bits <= 5 ? 8 : bits == 6 ? 4 : 2;
        struct Part {
            int16x8_t sums[4];   // two rows each
        };
        static PUNA_INLINE Bytes prepare(Bytes numbers) { return numbers; }
        static PUNA_INLINE Part zero() {
            const int16x8_t zero = vdupq_n_s16(0);
            return {{zero, zero, zero, zero}};
        }
        static PUNA_INLINE Part from(Ints) { return zero(); }
        static PUNA_INLINE Part add(Part part, Bytes numbers, const int8_t* x) {
            const int8x16_t low = vreinterpretq_s8_u8(numbers.low), high = vreinterpretq_s8_u8(numbers.high);
            const int8x16_t with = broadcast4(x);
            return {{vmlal_s8(part.sums[0], vget_low_s8(low), vget_low_s8(with)),
                     vmlal_high_s8(part.sums[1], low, with),
                     vmlal_s8(part.sums[2], vget_low_s8(high), vget_low_s8(with)),
                     vmlal_high_s8(part.sums[3], high, with)}};
        }
        static PUNA_INLINE Ints total(Part part) {
            const auto rows = [](int16x8_t a, int16x8_t b) { return vpaddq_s32(vpaddlq_s16(a), vpaddlq_s16(b)); };
            return {rows(part.sums[0], part.sums[1]), rows(part.sums[2], part.sums[3])};
        }
        static PUNA_INLINE Ints to(Part part, Ints sum) { return Neon::add(sum, total(part)); }
        static PUNA_INLINE Sum add_scaled(Sum sum, Part part, Ints scale) {
            return Scaled::scaled(sum, total(part), scale);
        }
    };
};

#if defined(__ARM_FEATURE_DOTPROD)
// One instruction multiplies four numbers by activations and adds them in 32 bits.
struct Dotprod : Neon {
    static constexpr int tile = 4;   // 8 sums, 8 parts, 8 totals and the numbers fit the 32 registers
    static constexpr int expanded_tile(int) { return tile; }

    template <int bits>
    struct Products : Scaled {
        static constexpr int chain = 8;
        using Part = Ints;
        static PUNA_INLINE Bytes prepare(Bytes numbers) { return numbers; }
        static PUNA_INLINE Part zero() { return splat(0); }
        static PUNA_INLINE Part from(Ints sum) { return sum; }
        static PUNA_INLINE Part add(Part part, Bytes numbers, const int8_t* x) {
            const int8x16_t with = broadcast4(x);
            return {vdotq_s32(part.low, vreinterpretq_s8_u8(numbers.low), with),
                    vdotq_s32(part.high, vreinterpretq_s8_u8(numbers.high), with)};
        }
        static PUNA_INLINE Ints to(Part part, Ints) { return part; }
        static PUNA_INLINE Sum add_scaled(Sum sum, Part part, Ints scale) { return Scaled::scaled(sum, part, scale); }
    };
};
#endif

}  // namespace
}  // namespace puna
