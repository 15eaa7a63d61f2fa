// Conversion of floats to rows of keys and values, compiled once per instruction set by the files that include this.
#pragma once
#include "kv/unpack.h"

namespace puna {
namespace {

PUNA_INLINE void store_scale(float scale, uint8_t* p) {
    const half bits = float_to_half(scale);
    std::memcpy(p, &bits, 2);
}

void to_halves(const float* from, half* to, int64_t count) {
    int64_t i = 0;
    for (; i + Vec::width <= count; i += Vec::width) Vec::load(from + i).store(to + i);
    if (i < count) store_part(load_part(from + i, int(count - i)), to + i, int(count - i));
}

void to_bfloats(const float* from, bfloat* to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = float_to_bfloat(from[i]);
}

// The smallest and the largest number of a block; both NaN if one is not finite.
PUNA_INLINE void block_range(const float* from, float& least, float& largest) {
    Vec low = Vec::load(from), high = low, check = Vec::splat(0);
    for (int i = 0; i < kv_block; i += Vec::width) {
        const Vec v = Vec::load(from + i);
        low = min(low, v), high = max(high, v), check = fma(v, Vec::splat(0), check);
    }
    const float nothing = sum_lanes(check);   // 0 times infinity is NaN
    largest = max_lane(high) + nothing;
    least = -max_lane(Vec::splat(0) - low) + nothing;
}

// The scale limited to the range of a half.
PUNA_INLINE float bounded_scale(float scale) { return scale > 65504 ? 65504 : scale < -65504 ? -65504 : scale; }

// Codes are -127 to 127 times the stored scale. A block with a number that is not finite becomes NaN.
void to_q8_0(const float* from, uint8_t* block, int64_t count) {
    for (int64_t i = 0; i < count; i += kv_block, from += kv_block, block += q8_0_bytes) {
        float least, largest;
        block_range(from, least, largest);
        store_scale(bounded_scale((largest > -least ? largest : -least) / 127), block);
        const float scale = load_scale(block);
        for (int k = 0; k < kv_block; k += Vec::width) {
            // A zero scale has zero codes, and the codes of a NaN do not matter.
            Vec codes = Vec::splat(0);
            if (scale > 0) {
                codes = round(min(Vec::splat(127), max(Vec::splat(-127), Vec::load(from + k) / Vec::splat(scale))));
            }
            float lanes[Vec::width];
            codes.store(lanes);
            for (int j = 0; j < Vec::width; j++) block[2 + k + j] = uint8_t(int8_t(lanes[j]));
        }
    }
}

// Codes are -8 to 7 times the stored scale, -8 being the number of largest magnitude.
void to_q4_0(const float* from, uint8_t* block, int64_t count) {
    for (int64_t i = 0; i < count; i += kv_block, from += kv_block, block += q4_0_bytes) {
        float least, largest;
        block_range(from, least, largest);
        store_scale(bounded_scale((largest >= -least ? largest : least) / -8), block);
        const float scale = load_scale(block);
        float lanes[kv_block] = {};
        for (int k = 0; k < kv_block && (scale > 0 || scale < 0); k += Vec::width) {
            round(min(Vec::splat(7), max(Vec::splat(-8), Vec::load(from + k) / Vec::splat(scale)))).store(lanes + k);
        }
        for (int k = 0; k < kv_block / 2; k++) {
            block[2 + k] = uint8_t((int(lanes[k]) + 8) | (int(lanes[k + kv_block / 2]) + 8) << 4);
        }
    }
}

// Stores `count` floats, which must be whole blocks for quantised types.
void store_numbers(KVType type, const float* from, void* to, int64_t count) {
    switch (type) {
        case KVType::f32: std::memcpy(to, from, count * sizeof(float)); break;
        case KVType::f16: to_halves(from, static_cast<half*>(to), count); break;
        case KVType::bf16: to_bfloats(from, static_cast<bfloat*>(to), count); break;
        case KVType::q8_0: to_q8_0(from, static_cast<uint8_t*>(to), count); break;
        case KVType::q4_0: to_q4_0(from, static_cast<uint8_t*>(to), count); break;
    }
}

}  // namespace
}  // namespace puna
