// The functions an instruction set provides for matrix products, and the activations they read.
#pragma once
#include <cstdint>

#include "core/level.h"
#include "weights/layout.h"

namespace puna {

// 256 values of one token as 8-bit integers, with a scale for each `scaled` of them: all 256 if the weights have
// super-blocks, else 32. If a value is NaN or infinite the scale is NaN, so that this token's results are NaN and no
// other's are affected.
template <int scaled>
struct alignas(64) ActivationBlock {
    static constexpr int columns = 256, summed = scaled == columns ? 16 : 32;
    static constexpr int excess = scaled == columns ? 32 : 128;   // of Q6_K's numbers; of Q8_0's, read as unsigned
    int8_t q[columns];
    int16_t sums16[columns / 16];             // sums of q over each 16
    int16_t sums32[columns / 32];              // over each 32, in pairs for multiply-add
    int32_t minus_excess[columns / summed];    // minus the sums over each `summed`, times `excess`
    float d[columns / scaled];
};
using SuperActivations = ActivationBlock<256>;
using BlockActivations = ActivationBlock<32>;

// 128 values of one token as sums of two bfloat16 numbers, which together keep 16 of a value's 24 bits. A value that is
// not finite is entirely in `high`.
struct alignas(64) SplitBlock {
    static constexpr int columns = 128;
    uint16_t high[columns], low[columns];
};

// 128 values of one token as integers times a scale (word_product.h explains their limit). If a value is NaN or
// infinite the scale is NaN.
struct alignas(64) WordBlock {
    static constexpr int columns = 128;
    int16_t words[columns];
    float scale;
};
// The limit of the norm of a block's integers, including rounding: its square is less than 2^31.
constexpr float largest_word_norm = 46300;
constexpr float largest_word = 32767;

enum class Scaling { per_256, per_32, none };   // none: the kernel reads float32, whole or split

inline constexpr Scaling scaling_of(Layout layout) {
    return format_of(layout).floats() ? Scaling::none : format_of(layout).super ? Scaling::per_256 : Scaling::per_32;
}

// Blocks whose largest value is below this are quantised to zero: 127 divided by it must be finite.
constexpr float smallest_scaled = 1e-35f;
// The same for 16-bit integers: 32767 divided by it must be finite.
constexpr float smallest_as_words = 1e-33f;

constexpr int max_tile = 8;   // the most tokens a tile function of any instruction set accepts

// How many bytes ahead weights are prefetched: `near` into the first-level cache, `far` into the second. 0: none.
struct PrefetchDistance {
    int near = 0, far = 0;
    bool once = false;   // `near` ones do not enter the other caches when they leave the first

    // The distance of each of `count` streams that are read side by side, with one prefetch for a line.
    PrefetchDistance shared_by(int count) const { return {(near + far) / count, 0, once}; }
};
// For up to 4 tokens; for up to a tile of them and a small matrix; and for all others.
struct Prefetch {
    PrefetchDistance few, small, many;

    PrefetchDistance with(int64_t tokens, int64_t bytes) const {
        constexpr int64_t small_bytes = 1 << 20;
        return tokens <= 4 ? few : tokens <= max_tile && bytes <= small_bytes ? small : many;
    }
};
// Measured on Intel processors: their hardware follows a stream within a page. An early prefetch into the second-level
// cache carries it over the edge of the page, a late one brings it near. Prefetching everything early into the
// first-level cache takes the buffers that the hardware needs.
constexpr Prefetch prefetch_with_hardware = {{1024, 3072}, {1024, 3072}, {1024, 3072}};
// Measured on AMD processors: with few tokens one early prefetch for each line is fastest. With more, lines that wait
// for memory would take all buffers of the first-level cache, so that they come to the second-level one first. That is
// kept for all else that a step needs, from code to activations, where this pays: with few tokens, 1.02 to 1.1 times as
// fast, and with small matrices, beside which the rest of a step counts more.
constexpr Prefetch prefetch_instead_of_hardware = {{8192, 0, true}, {10240, 0, true}, {4096, 8192}};

// Multiplies `groups` consecutive row groups (`stride` bytes apart) by T tokens: y[t][g * R + r]. x[t] points at token
// t's first activations (an ActivationBlock, a SplitBlock, a WordBlock or float32 values); blocks are `step` bytes
// apart.
using TileFunction = void (*)(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns,
                              const void* const* x, int64_t step, float* const* y, PrefetchDistance prefetch);

// Tokens multiplied at a time.
constexpr int64_t token_block = 256;

// The same for any number of tokens up to token_block. If tokens are contiguous, up to rows_behind more may be read
// after the last. `room` is wide_room bytes of scratch memory.
using WideFunction = void (*)(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns,
                              const void* const* x, int64_t step, float* const* y, int64_t tokens, uint8_t* room,
                              PrefetchDistance prefetch);
constexpr int64_t rows_behind = 15;
constexpr int64_t wide_room = 512 << 10;

// Quantises `columns` values (a multiple of 32) of one token.
template <int scaled>
using QuantizeFunction = void (*)(const float* x, int64_t columns, ActivationBlock<scaled>* blocks);
// Splits up to 128 values; missing ones count as zeros.
using SplitFunction = void (*)(const float* x, int64_t columns, SplitBlock* block);
// Converts up to 128 values to integers; missing ones count as zeros.
using WordFunction = void (*)(const float* x, int64_t columns, WordBlock* block);

struct MatrixKernels {
    int rows;                                       // R
    Prefetch prefetch;                              // for weights read from memory
    int tile[layout_count];                         // tokens in the largest tile of a layout
    TileFunction product[layout_count][max_tile];   // [layout][tokens - 1], null if all tokens use the wide function
    WideFunction wide[layout_count];                // null, or the function for `wide_from` tokens or more
    int wide_from[layout_count];
    QuantizeFunction<256> quantize_per_256;
    QuantizeFunction<32> quantize_per_32;
    SplitFunction split;                            // null, or the form that f16 and bf16 matrices read
    WordFunction words;                             // null, or the form they read if `split` is null
};

// The table for a level.
const MatrixKernels& matrix_kernels(CpuLevel level = cpu_level());

// Whether two tables have the same code for matrices of this layout.
bool same_kernels(const MatrixKernels& a, const MatrixKernels& b, Layout layout);

}  // namespace puna
