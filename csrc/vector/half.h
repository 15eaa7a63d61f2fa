// 16-bit floating-point numbers: half (IEEE binary16) and bfloat (the upper half of a float).
//
// Everything here has internal linkage: sources for any instruction set may include it.
#pragma once
#include <cstdint>
#include <cstring>

#include "vector/inline.h"

namespace puna {
namespace {

using half = uint16_t;     // the bits of a half
using bfloat = uint16_t;

PUNA_INLINE float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

PUNA_INLINE uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

PUNA_INLINE float half_to_float(half h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = uint32_t(h & 0x7fff) << 13;
    if (rest >= 0x0f800000) return bits_to_float(sign | rest | 0x7f800000);   // infinity, NaN
    return bits_to_float(sign | float_to_bits(bits_to_float(rest) * 0x1p112f));
}

// Rounds to nearest, ties to even; larger values become infinity.
PUNA_INLINE half float_to_half(float value) {
    const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return half(sign | 0x7e00);
    if (rest >= 0x477ff000) return half(sign | 0x7c00);   // 65520 and up
    if (rest < 0x38800000) {                              // below 2^-14: let the addition do the rounding
        return half(sign | (float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000));
    }
    return half(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

// 16 bits as stored in files: the lower byte first, at any address.
PUNA_INLINE uint16_t bits_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }
PUNA_INLINE float half_at(const uint8_t* p) { return half_to_float(bits_at(p)); }

PUNA_INLINE float bfloat_to_float(bfloat b) { return bits_to_float(uint32_t(b) << 16); }

// Rounds to nearest, ties to even; NaN stays.
PUNA_INLINE bfloat float_to_bfloat(float value) {
    const uint32_t bits = float_to_bits(value);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
    return bfloat(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

}  // namespace
}  // namespace puna
