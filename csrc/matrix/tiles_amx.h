// AMX tile instructions, with their memory operands spelled out: the compiler's own intrinsics do not say what
// they read, and it has moved stores behind them.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "matrix/kernels.h"
#include "matrix/quads.h"

namespace puna {
namespace {

// The shapes of the eight tile registers.
struct TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int row_count, int bytes) {
        rows[tile] = static_cast<uint8_t>(row_count);
        row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
};
static_assert(sizeof(TileShapes) == 64, "what ldtilecfg reads");

// Configures tiles during this object's lifetime and restores the previous configuration afterwards: another library in
// this process may have configured its own once for all on this thread.
class UseTiles {
public:
    explicit UseTiles(const TileShapes& shapes) {
        __asm__ volatile("sttilecfg %0" : "=m"(before_));
        __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~UseTiles() {
        if (before_.palette) __asm__ volatile("ldtilecfg %0" ::"m"(before_));
        else __asm__ volatile("tilerelease" ::: "memory");
    }
    UseTiles(const UseTiles&) = delete;
    UseTiles& operator=(const UseTiles&) = delete;

private:
    TileShapes before_;
};

template <int tile>
PUNA_INLINE void zero_tile() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(tile)); }

template <int tile>
PUNA_INLINE void load_tile(const void* from, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}

template <int tile>
PUNA_INLINE void store_tile(void* to, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
}

// sums += tokens * numbers: tokens [16, 4 n] signed, numbers [n, 16][4] signed or not, sums [16, 16] of 32 bits.
template <bool is_signed, int sums, int tokens, int numbers>
PUNA_INLINE void multiply_tiles() {
    if constexpr (is_signed) {
        __asm__ volatile("tdpbssd %%tmm%c0, %%tmm%c1, %%tmm%c2" ::"i"(numbers), "i"(tokens), "i"(sums));
    } else {
        __asm__ volatile("tdpbsud %%tmm%c0, %%tmm%c1, %%tmm%c2" ::"i"(numbers), "i"(tokens), "i"(sums));
    }
}

// The same for bfloat16 numbers: tokens [16, 2 n], numbers [n, 16][2], sums [16, 16] of float32. Sums of even and odd
// columns are added up separately; values below 2^-126 count as zero.
template <int sums, int tokens, int numbers>
PUNA_INLINE void multiply_bfloat_tiles() {
    __asm__ volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" ::"i"(numbers), "i"(tokens), "i"(sums));
}

}  // namespace
}  // namespace puna
