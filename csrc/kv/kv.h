// The storage of keys and values in a cache.
#pragma once
#include <cstdint>

namespace puna {

// Numbered as in GGUF files. The quantised types store blocks of 32 numbers along the head dimension.
enum class KVType { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30 };

constexpr int kv_block = 32;
// A block is the scale, a half, and its codes: a signed byte each, or two per byte, the first 16 in the low halves.
constexpr int q8_0_bytes = 2 + kv_block, q4_0_bytes = 2 + kv_block / 2;

// Bytes of `count` numbers, which must be whole blocks for quantised types.
constexpr int64_t kv_bytes(KVType type, int64_t count) {
    switch (type) {
        case KVType::f32: return 4 * count;
        case KVType::q8_0: return count / kv_block * q8_0_bytes;
        case KVType::q4_0: return count / kv_block * q4_0_bytes;
        default: return 2 * count;
    }
}

}  // namespace puna
