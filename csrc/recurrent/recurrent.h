// What recurrent layers compute: short convolutions, and linear attention with a state of its own.
#pragma once
#include <cstdint>

#include "core/sets.h"

namespace puna {

// How the rows of a batch, those of a sequence one after another, go on from states and leave some behind.
struct StateRows {
    // Of each row [rows]: the first row of its sequence, the slot of the state before that row, and the slot for the
    // state after the row itself, or -1. No slot is read and written in one call.
    const int32_t *starts, *sources, *targets;
    int64_t rows;
};

// Convolutions of each channel over the rows of each sequence.
struct ShortConv {
    StateRows rows;
    const float* projected;   // [rows, 3 * channels]: b, c and x of each row; [rows, channels], x alone, unless `gated`
    const float* weights;     // [taps, channels], the latest row's last
    const float* bias;        // [channels] or null
    float* states;            // [slots, taps - 1, channels]: what of as many rows is convolved, the latest last
    float* y;                 // [rows, channels]
    int64_t channels, taps;
    bool gated;       // b * x is convolved, and c times it comes out; else x
    bool activated;   // unless gated, what comes out goes through SiLU
};

// A row of y depends on its own row and the taps - 1 before it alone, bit for bit, whether these are in the batch or
// in the state.
void short_conv(const ShortConv& call);

// A memory of each head, a matrix [key_dim, value_dim] to which a key is multiplied to find what it stands for:
//
//     memory = exp(decay) * memory
//     memory = memory + key (beta * value)^T, or memory + key (beta * (value - memory^T key))^T by the delta rule
//     y = memory^T query, and skip * value
//
// With probes and removals, what a probe finds in the memory before it decays is taken out of the decayed one:
//
//     memory = exp(decay) * memory - removal (memory^T probe)^T
struct LinearAttention {
    StateRows rows;
    const float *queries, *keys;   // [rows, key_heads, key_dim]
    const float* values;           // [rows, heads, value_dim]
    const float* decays;           // [rows, heads], or of each key [rows, heads, key_dim]
    const float* betas;            // [rows, heads] or null: 1
    const float* skips;            // [heads] or null
    const float *probes, *removals;   // as the keys, or null; not by the delta rule
    float* states;                 // [slots, heads, key_dim, value_dim]
    float* y;                      // [rows, heads, value_dim]
    int64_t heads, key_heads, key_dim, value_dim;
    bool delta, decay_of_keys;
    bool tiled;   // head h has the keys of head h % key_heads, else those of h * key_heads / heads
};

// A row's result is the same bits however its sequence is cut into calls, and whatever else is in them.
void linear_attention(const LinearAttention& call);

struct RecurrentKernels {
    // One row of a convolution of `width` channels: what is convolved is b * x, or x where b and c are null. y is
    // c times, or SiLU of if `activated`, the bias and the sum of weights[i] * past[i] and the last weights * that.
    void (*short_conv)(const float* b, const float* c, const float* x, const float* const* past,
                       const float* weights, const float* bias, int64_t taps, int64_t width, bool activated,
                       float* newest, float* y);
    // Rows [begin, end), of one sequence, of one head; the columns of the values from `column` on, as many as
    // `columns` says, or fewer at the end. `room` is for key_dim * (columns + 1) floats.
    void (*linear_attention)(const LinearAttention& call, int64_t head, int64_t column, int64_t begin, int64_t end,
                             float* room);
    int64_t columns;
};

// Of the CPU level in use, unless another is given.
PUNA_DECLARE_KERNELS(RecurrentKernels, recurrent_kernels);

}  // namespace puna
