// A vector of floats of the instruction set that the including file is compiled for.
//
// Everything here has internal linkage, so that each file keeps the code compiled with its own flags.
#pragma once
#include <cstdint>
#include <cstring>

#include "vector/half.h"
#include "vector/inline.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(PUNA_NEON)   // set by the build: every aarch64 compiler has NEON, also for the portable files
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
// GCC 12 mistakes the "undefined" operands of its own AVX-512 intrinsics for our errors.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace puna {
namespace {

#if defined(__AVX512F__)

struct Vec {
    static constexpr int width = 16;
    __m512 v;

    static PUNA_INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
    static PUNA_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static PUNA_INLINE Vec load(const half* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    PUNA_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
    // Stores without reading the line into the caches; `p` must be aligned to a vector. Other threads see it after
    // fence_nontemporal().
    PUNA_INLINE void store_nontemporal(float* p) const { _mm512_stream_ps(p, v); }
    PUNA_INLINE void store(half* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
};
PUNA_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
PUNA_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
PUNA_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
PUNA_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
PUNA_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// A NaN in `b` stays; one in `a` may be lost.
PUNA_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
PUNA_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
PUNA_INLINE Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for whole n in [-126, 127].
PUNA_INLINE Vec scale_by_power(Vec a, Vec n) {
    return {_mm512_scalef_ps(a.v, n.v)};
}
// Bit i: whether a[i] > b[i].
PUNA_INLINE uint32_t greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
// a[i] where bit i is set, b[i] elsewhere; bits beyond the lanes are ignored.
PUNA_INLINE Vec pick(uint32_t bits, Vec a, Vec b) { return {_mm512_mask_blend_ps(__mmask16(bits), b.v, a.v)}; }
// sum + x where a <= limit, sum elsewhere.
PUNA_INLINE Vec add_where(Vec sum, Vec x, Vec a, Vec limit) {
    return {_mm512_mask_add_ps(sum.v, _mm512_cmp_ps_mask(a.v, limit.v, _CMP_LE_OQ), sum.v, x.v)};
}

#elif defined(__AVX2__)

struct Vec {
    static constexpr int width = 8;
    __m256 v;

    static PUNA_INLINE Vec splat(float x) { return {_mm256_set1_ps(x)}; }
    static PUNA_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static PUNA_INLINE Vec load(const half* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    PUNA_INLINE void store(float* p) const { _mm256_storeu_ps(p, v); }
    PUNA_INLINE void store_nontemporal(float* p) const { _mm256_stream_ps(p, v); }
    PUNA_INLINE void store(half* p) const {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
};
PUNA_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
PUNA_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
PUNA_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
PUNA_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
PUNA_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
PUNA_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
PUNA_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
PUNA_INLINE Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
PUNA_INLINE Vec scale_by_power(Vec a, Vec n) {
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23);
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(bits))};
}
PUNA_INLINE uint32_t greater(Vec a, Vec b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)));
}
PUNA_INLINE Vec pick(uint32_t bits, Vec a, Vec b) {
    const __m256i places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), places);
    return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, places)))};
}
PUNA_INLINE Vec add_where(Vec sum, Vec x, Vec a, Vec limit) {
    return {_mm256_add_ps(sum.v, _mm256_and_ps(_mm256_cmp_ps(a.v, limit.v, _CMP_LE_OQ), x.v))};
}

#elif defined(PUNA_NEON)

struct Vec {
    static constexpr int width = 4;
    float32x4_t v;

    static PUNA_INLINE Vec splat(float x) { return {vdupq_n_f32(x)}; }
    static PUNA_INLINE Vec load(const float* p) { return {vld1q_f32(p)}; }
    static PUNA_INLINE Vec load(const half* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
    PUNA_INLINE void store(float* p) const { vst1q_f32(p, v); }
    PUNA_INLINE void store_nontemporal(float* p) const { store(p); }
    PUNA_INLINE void store(half* p) const { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
};
PUNA_INLINE Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
PUNA_INLINE Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
PUNA_INLINE Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
PUNA_INLINE Vec operator/(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
PUNA_INLINE Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
PUNA_INLINE Vec min(Vec a, Vec b) { return {vminq_f32(a.v, b.v)}; }
PUNA_INLINE Vec max(Vec a, Vec b) { return {vmaxq_f32(a.v, b.v)}; }
PUNA_INLINE Vec round(Vec a) { return {vrndnq_f32(a.v)}; }
PUNA_INLINE Vec scale_by_power(Vec a, Vec n) {
    const int32x4_t bits = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v), vdupq_n_s32(127)), 23);
    return {vmulq_f32(a.v, vreinterpretq_f32_s32(bits))};
}
PUNA_INLINE uint32_t greater(Vec a, Vec b) {
    constexpr uint32_t places[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vcgtq_f32(a.v, b.v), vld1q_u32(places)));
}
PUNA_INLINE Vec pick(uint32_t bits, Vec a, Vec b) {
    constexpr uint32_t places[4] = {1, 2, 4, 8};
    return {vbslq_f32(vtstq_u32(vdupq_n_u32(bits), vld1q_u32(places)), a.v, b.v)};
}
PUNA_INLINE Vec add_where(Vec sum, Vec x, Vec a, Vec limit) {
    return {vaddq_f32(sum.v, vreinterpretq_f32_u32(vandq_u32(vcleq_f32(a.v, limit.v), vreinterpretq_u32_f32(x.v))))};
}

#else

// Four lanes, which the compiler maps to SSE2 or NEON where it can.
struct Vec {
    static constexpr int width = 4;
    float v[4];

    static PUNA_INLINE Vec splat(float x) { return {{x, x, x, x}}; }
    static PUNA_INLINE Vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
    static PUNA_INLINE Vec load(const half* p) {
        return {{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])}};
    }
    PUNA_INLINE void store(float* p) const {
        for (int i = 0; i < 4; i++) p[i] = v[i];
    }
    PUNA_INLINE void store_nontemporal(float* p) const { store(p); }
    PUNA_INLINE void store(half* p) const {
        for (int i = 0; i < 4; i++) p[i] = float_to_half(v[i]);
    }
};
#define PUNA_LANES(expression)                       \
    Vec r;                                           \
    for (int i = 0; i < 4; i++) r.v[i] = expression; \
    return r
PUNA_INLINE Vec operator+(Vec a, Vec b) { PUNA_LANES(a.v[i] + b.v[i]); }
PUNA_INLINE Vec operator-(Vec a, Vec b) { PUNA_LANES(a.v[i] - b.v[i]); }
PUNA_INLINE Vec operator*(Vec a, Vec b) { PUNA_LANES(a.v[i] * b.v[i]); }
PUNA_INLINE Vec operator/(Vec a, Vec b) { PUNA_LANES(a.v[i] / b.v[i]); }
PUNA_INLINE Vec fma(Vec a, Vec b, Vec c) { PUNA_LANES(a.v[i] * b.v[i] + c.v[i]); }
PUNA_INLINE Vec min(Vec a, Vec b) { PUNA_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
PUNA_INLINE Vec max(Vec a, Vec b) { PUNA_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
// Adding and subtracting 1.5 * 2^23 leaves no bits below the binary point.
PUNA_INLINE Vec round(Vec a) { return (a + Vec::splat(0x1.8p23f)) - Vec::splat(0x1.8p23f); }
PUNA_INLINE Vec scale_by_power(Vec a, Vec n) {
    PUNA_LANES(a.v[i] * bits_to_float(static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23));
}
PUNA_INLINE uint32_t greater(Vec a, Vec b) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= uint32_t(a.v[i] > b.v[i]) << i;
    return bits;
}
PUNA_INLINE Vec pick(uint32_t bits, Vec a, Vec b) { PUNA_LANES(bits >> i & 1 ? a.v[i] : b.v[i]); }
PUNA_INLINE Vec add_where(Vec sum, Vec x, Vec a, Vec limit) {
    PUNA_LANES(a.v[i] <= limit.v[i] ? sum.v[i] + x.v[i] : sum.v[i]);
}
#undef PUNA_LANES

#endif

#if defined(__AVX2__)
// Sums of the lanes of four vectors, always by the same tree, so that a sum does not depend on its neighbours.
PUNA_INLINE __m128 sum_lanes(Vec a, Vec b, Vec c, Vec d) {
#if defined(__AVX512F__)
    const auto fold = [](Vec x) {
        return _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    };
    const __m256 ab = _mm256_hadd_ps(fold(a), fold(b)), cd = _mm256_hadd_ps(fold(c), fold(d));
#else
    const __m256 ab = _mm256_hadd_ps(a.v, b.v), cd = _mm256_hadd_ps(c.v, d.v);
#endif
    const __m256 all = _mm256_hadd_ps(ab, cd);
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}
#endif

// The same, written to memory.
PUNA_INLINE void sum_lanes(Vec a, Vec b, Vec c, Vec d, float* sums) {
#if defined(__AVX2__)
    _mm_storeu_ps(sums, sum_lanes(a, b, c, d));
#elif defined(PUNA_NEON)
    vst1q_f32(sums, vpaddq_f32(vpaddq_f32(a.v, b.v), vpaddq_f32(c.v, d.v)));
#else
    const auto sum = [](Vec x) { return (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]); };
    sums[0] = sum(a), sums[1] = sum(b), sums[2] = sum(c), sums[3] = sum(d);
#endif
}

#if defined(__AVX2__)
struct Adding {
    static PUNA_INLINE __m256 of(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
    static PUNA_INLINE __m128 of(__m128 a, __m128 b) { return _mm_add_ps(a, b); }
};
struct Larger {
    static PUNA_INLINE __m256 of(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
    static PUNA_INLINE __m128 of(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
};

// Combines lane i with lane i + half of the lanes, and so on.
template <class Combine>
PUNA_INLINE float fold_lanes(Vec a) {
#if defined(__AVX512F__)
    const __m256 eight = Combine::of(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
    const __m256 eight = a.v;
#endif
    const __m128 four = Combine::of(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = Combine::of(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(Combine::of(two, _mm_movehdup_ps(two)));
}
#endif

PUNA_INLINE float sum_lanes(Vec a) {
#if defined(__AVX2__)
    return fold_lanes<Adding>(a);
#else
    float lanes[Vec::width];
    a.store(lanes);
    for (int half_width = Vec::width / 2; half_width; half_width /= 2) {
        for (int i = 0; i < half_width; i++) lanes[i] += lanes[i + half_width];
    }
    return lanes[0];
#endif
}

PUNA_INLINE float max_lane(Vec a) {
#if defined(__AVX2__)
    return fold_lanes<Larger>(a);
#else
    float lanes[Vec::width];
    a.store(lanes);
    float most = lanes[0];
    for (int i = 1; i < Vec::width; i++) most = lanes[i] > most ? lanes[i] : most;
    return most;
#endif
}

PUNA_INLINE void fence_nontemporal() {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

// The first n < width values, zeros after them.
template <class T>
PUNA_INLINE Vec load_part(const T* p, int n) {
    T lanes[Vec::width] = {};
    std::memcpy(lanes, p, n * sizeof(T));
    return Vec::load(lanes);
}

template <class T>
PUNA_INLINE void store_part(Vec a, T* p, int n) {
    T lanes[Vec::width];
    a.store(lanes);
    std::memcpy(p, lanes, n * sizeof(T));
}

// e^x to about 1 ulp: 2^n * e^r with |r| <= ln(2)/2. Exactly 1 at 0, 0 below -87.3, infinity above 88.7; NaN stays.
PUNA_INLINE Vec exp(Vec x) {
    const Vec low = Vec::splat(-87.33654f), high = Vec::splat(88.72284f);
    const Vec n = round(x * Vec::splat(0x1.715476p0f));
    const Vec kept = min(Vec::splat(127), max(Vec::splat(-126), n));
    Vec r = fma(kept, Vec::splat(-0x1.62e4p-1f), x);
    r = fma(kept, Vec::splat(-0x1.7f7d1cp-20f), r);
    Vec p = Vec::splat(0x1.a01a02p-13f);   // Taylor: 1/7! ... 1
    p = fma(p, r, Vec::splat(0x1.6c16c2p-10f));
    p = fma(p, r, Vec::splat(0x1.111112p-7f));
    p = fma(p, r, Vec::splat(0x1.555556p-5f));
    p = fma(p, r, Vec::splat(0x1.555556p-3f));
    p = fma(p, r, Vec::splat(0.5f));
    p = fma(p * r, r, r) + Vec::splat(1.0f);
    const Vec result = scale_by_power(p, kept);
#if defined(__AVX512F__)
    const __m512 floored = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, low.v, _CMP_LT_OQ), result.v, _mm512_setzero_ps());
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, high.v, _CMP_GT_OQ), floored, _mm512_set1_ps(1.0f / 0.0f))};
#elif defined(__AVX2__)
    const __m256 floored = _mm256_blendv_ps(result.v, _mm256_setzero_ps(), _mm256_cmp_ps(x.v, low.v, _CMP_LT_OQ));
    return {_mm256_blendv_ps(floored, _mm256_set1_ps(1.0f / 0.0f), _mm256_cmp_ps(x.v, high.v, _CMP_GT_OQ))};
#elif defined(PUNA_NEON)
    const float32x4_t floored = vbslq_f32(vcltq_f32(x.v, low.v), vdupq_n_f32(0), result.v);
    return {vbslq_f32(vcgtq_f32(x.v, high.v), vdupq_n_f32(1.0f / 0.0f), floored)};
#else
    Vec chosen;
    for (int i = 0; i < 4; i++) {
        chosen.v[i] = x.v[i] < low.v[i] ? 0.0f : x.v[i] > high.v[i] ? 1.0f / 0.0f : result.v[i];
    }
    return chosen;
#endif
}

// tanh to about 1e-7 absolute.
PUNA_INLINE Vec tanh(Vec x) {
    const Vec bounded = min(Vec::splat(10), max(Vec::splat(-10), x));
    const Vec one = Vec::splat(1);
    return one - Vec::splat(2) / (exp(bounded + bounded) + one);
}

}  // namespace
}  // namespace puna
