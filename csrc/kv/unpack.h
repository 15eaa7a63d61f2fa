// Conversion of rows of keys and values to floats, compiled once per instruction set by the files that include this.
#pragma once
#include "kv/kv.h"
#include "vector/vector.h"

namespace puna {
namespace {

PUNA_INLINE Vec load_bfloats(const bfloat* p) {
#if defined(__AVX512F__)
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
#elif defined(__AVX2__)
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
#else
    float lanes[Vec::width];
    for (int i = 0; i < Vec::width; i++) lanes[i] = bfloat_to_float(p[i]);
    return Vec::load(lanes);
#endif
}

// Signed bytes as floats.
PUNA_INLINE Vec load_bytes(const int8_t* p) {
#if defined(__AVX512F__)
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
#elif defined(__AVX2__)
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
#else
    float lanes[Vec::width];
    for (int i = 0; i < Vec::width; i++) lanes[i] = float(p[i]);
    return Vec::load(lanes);
#endif
}

// The low and high halves of bytes as floats.
PUNA_INLINE void load_nibbles(const uint8_t* p, Vec& low, Vec& high) {
#if defined(__AVX512F__)
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    low = {_mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)))};
    high = {_mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4))};
#elif defined(__AVX2__)
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    low = {_mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)))};
    high = {_mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4))};
#else
    float lows[Vec::width], highs[Vec::width];
    for (int i = 0; i < Vec::width; i++) lows[i] = float(p[i] & 15), highs[i] = float(p[i] >> 4);
    low = Vec::load(lows), high = Vec::load(highs);
#endif
}

PUNA_INLINE float load_scale(const uint8_t* p) {
    half bits;
    std::memcpy(&bits, p, 2);
#if defined(__AVX2__)
    return _cvtsh_ss(bits);
#else
    return half_to_float(bits);
#endif
}

// Converts `count` numbers to floats, a vector at a time by `load`; the last vector is padded with zeros.
template <class T, class Load>
PUNA_INLINE void unpack_numbers(const T* from, int count, float* to, Load load) {
    int i = 0;
    for (; i + 4 * Vec::width <= count; i += 4 * Vec::width) {
        for (int k = 0; k < 4; k++) load(from + i + k * Vec::width).store(to + i + k * Vec::width);
    }
    for (; i + Vec::width <= count; i += Vec::width) load(from + i).store(to + i);
    if (i < count) {
        T lanes[Vec::width] = {};
        std::memcpy(lanes, from + i, (count - i) * sizeof(T));
        load(lanes).store(to + i);
    }
}

PUNA_INLINE void unpack_q8_0(const uint8_t* block, int count, float* to) {
    for (int i = 0; i < count; i += kv_block, block += q8_0_bytes, to += kv_block) {
        const Vec scale = Vec::splat(load_scale(block));
        const int8_t* codes = reinterpret_cast<const int8_t*>(block + 2);
        for (int k = 0; k < kv_block; k += Vec::width) (load_bytes(codes + k) * scale).store(to + k);
    }
}

PUNA_INLINE void unpack_q4_0(const uint8_t* block, int count, float* to) {
    for (int i = 0; i < count; i += kv_block, block += q4_0_bytes, to += kv_block) {
        const Vec scale = Vec::splat(load_scale(block)), middle = Vec::splat(8);
        for (int k = 0; k < kv_block / 2; k += Vec::width) {
            Vec low, high;
            load_nibbles(block + 2 + k, low, high);
            ((low - middle) * scale).store(to + k);
            ((high - middle) * scale).store(to + kv_block / 2 + k);
        }
    }
}

// Converts `count` numbers to floats; the last vector is padded with zeros. Quantised: whole blocks.
template <KVType type>
PUNA_INLINE void unpack(const uint8_t* row, int count, float* to) {
    if constexpr (type == KVType::q8_0) return unpack_q8_0(row, count, to);
    if constexpr (type == KVType::q4_0) return unpack_q4_0(row, count, to);
    if constexpr (type == KVType::f32) {
        unpack_numbers(reinterpret_cast<const float*>(row), count, to, [](const float* p) { return Vec::load(p); });
    }
    if constexpr (type == KVType::f16) {
        unpack_numbers(reinterpret_cast<const half*>(row), count, to, [](const half* p) { return Vec::load(p); });
    }
    if constexpr (type == KVType::bf16) {
        unpack_numbers(reinterpret_cast<const bfloat*>(row), count, to,
                       [](const bfloat* p) { return load_bfloats(p); });
    }
}

}  // namespace
}  // namespace puna
