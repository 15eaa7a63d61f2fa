// Half-precision numbers in portable code. Internal linkage on purpose: see the note in CMakeLists.txt.
#pragma once
#include <cstdint>
#include <cstring>

namespace puna {
namespace {

[[maybe_unused]] inline float float_from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

[[maybe_unused]] inline uint32_t bits_from_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

[[maybe_unused]] inline float float_from_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude < 0x0400) {   // zero and subnormals: multiples of 2^-24
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return float_from_bits(sign | bits_from_float(value));
    }
    return float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
}

[[maybe_unused]] inline float float_from_bfloat(uint16_t bits) {
    return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

}  // namespace
}  // namespace puna
