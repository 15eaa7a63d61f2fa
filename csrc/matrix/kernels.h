// What an instruction set provides for matrix products, and the activations it works on.
#pragma once
#include <cstdint>

#include "core/level.h"
#include "weights/layout.h"

namespace puna {

// 256 values of one token as 8-bit integers. Scales: one for all 256 (in d[0]) where the weights have
// super-blocks of 256, else one per 32. Where a value is NaN or infinite the scale is NaN, so that this
// token's results are NaN and nobody else's are touched.
struct alignas(64) ActivationBlock {
    static constexpr int columns = 256;
    int8_t q[columns];
    int16_t sums16[16];   // sum of q over each 16
    int16_t sums32[8];    // over each 32, in pairs for multiply-add
    int32_t wide32[8];    // the same sums, 32 bits wide
    float d[8];
};

// 128 values of one token as sums of two bfloat16 numbers, which have 16 bits of a value's 24 together. What is not
// finite is all in `high`.
struct alignas(64) SplitBlock {
    static constexpr int columns = 128;
    uint16_t high[columns], low[columns];
};

// 128 values of one token as integers times a scale (word_product.h says why none is larger). Where a value is NaN or
// infinite the scale is NaN.
struct alignas(64) WordBlock {
    static constexpr int columns = 128;
    int16_t words[columns];
    float scale;
};
// The squares of a block's integers add up to no more than this squared, rounding included: less than 2^31.
constexpr float largest_word_norm = 46300;
constexpr float largest_word = 32767;

enum class Scaling { per_256, per_32, none };   // none: the kernel reads float32, or it split

inline constexpr Scaling scaling_of(Layout layout) {
    return format_of(layout).floats() ? Scaling::none : format_of(layout).super ? Scaling::per_256 : Scaling::per_32;
}

// Blocks whose largest value is below this are quantised to zero: 127 divided by it must be finite.
constexpr float smallest_scaled = 1e-35f;
// The same for 16-bit integers, for 32767 divided by it.
constexpr float smallest_as_words = 1e-33f;

constexpr int max_tile = 8;   // the most tokens a tile function of any instruction set takes

// How many bytes ahead weights are prefetched: `near` into the first-level cache, `far` into the second. 0: not at all.
struct PrefetchDistance {
    int near = 0, far = 0;
};
// Measured on Intel's processors: their hardware follows a stream within a page. An early prefetch into the
// second-level cache carries it over the edge of the page, a late one brings it near. Prefetching everything early into
// the first-level cache takes the buffers that the hardware needs.
constexpr PrefetchDistance prefetch_with_hardware = {1024, 3072};
// Measured on AMD's: with eight tokens the hardware falls behind; one early prefetch for each line keeps up.
constexpr PrefetchDistance prefetch_instead_of_hardware = {8192, 0};

// Products of `groups` consecutive row groups (`stride` bytes apart) with T tokens: y[t][g * R + r].
// x[t] points at token t's first activations (an ActivationBlock, a SplitBlock, a WordBlock or float32 values), the
// next block is `step` bytes further.
using TileFunction = void (*)(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns,
                              const void* const* x, int64_t step, float* const* y, PrefetchDistance prefetch);

// Tokens that products are made of at a time.
constexpr int64_t token_block = 256;

// The same for any number of tokens up to token_block. Where tokens lie one behind the other, up to rows_behind more
// may be read behind the last. `room` is wide_room bytes for whatever the function likes.
using WideFunction = void (*)(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns,
                              const void* const* x, int64_t step, float* const* y, int64_t tokens, uint8_t* room,
                              PrefetchDistance prefetch);
constexpr int64_t rows_behind = 15;
constexpr int64_t wide_room = 512 << 10;

// Quantises `columns` values (a multiple of 32) of one token.
using QuantizeFunction = void (*)(const float* x, int64_t columns, ActivationBlock* blocks);
// Splits up to 128 values; those that are missing count as zeros.
using SplitFunction = void (*)(const float* x, int64_t columns, SplitBlock* block);
// Makes up to 128 values integers; those that are missing count as zeros.
using WordFunction = void (*)(const float* x, int64_t columns, WordBlock* block);

struct MatrixKernels {
    int rows;                                       // R
    PrefetchDistance prefetch;                      // for weights that come from memory
    int tile[layout_count];                         // tokens in the largest tile of a layout
    TileFunction product[layout_count][max_tile];   // [layout][tokens - 1], null where all tokens go the wide way
    WideFunction wide[layout_count];                // null, or what is to be called for `wide_from` tokens or more
    int wide_from[layout_count];
    QuantizeFunction quantize_per_256;
    QuantizeFunction quantize_per_32;
    SplitFunction split;                            // null, or what f16 and bf16 matrices want
    WordFunction words;                             // null, or what they want where `split` is null
};

// The table of a level.
const MatrixKernels& matrix_kernels(CpuLevel level = cpu_level());

// Whether two tables have the same code for matrices of this layout.
bool same_kernels(const MatrixKernels& a, const MatrixKernels& b, Layout layout);

}  // namespace puna
