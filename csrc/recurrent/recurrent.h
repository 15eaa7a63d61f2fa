// The operations of recurrent layers: short convolutions, and linear attention with a state.
#pragma once
#include <cstdint>

#include "core/sets.h"

namespace puna {

// How the rows of a batch, contiguous per sequence, continue from states and store new ones.
struct StateRows {
    // For each row [rows]: the first row of its sequence, the slot of the state before that row, and the slot for the
    // state after the row itself, or -1. No slot is both read and written in one call.
    const int32_t *starts, *sources, *targets;
    int64_t rows;
};

// Convolutions of each channel over the rows of each sequence.
struct ShortConv {
    StateRows rows;
    const float* projected;   // [rows, 3 * channels]: b, c and x of each row; [rows, channels], x alone, unless `gated`
    const float* weights;     // [taps, channels], the latest row's last
    const float* bias;        // [channels] or null
    float* states;            // [slots, taps - 1, channels]: the inputs of that many rows, the latest last
    float* y;                 // [rows, channels]
    int64_t channels, taps;
    bool gated;       // b * x is convolved, and the result multiplied by c; otherwise x is convolved
    bool activated;   // unless gated, the result goes through SiLU
};

// A row of y depends only on its own row and the taps - 1 before it, bit for bit, whether these are in the batch or in
// the state.
void short_conv(const ShortConv& call);

// Means of each channel over the last `taps` rows of a sequence, weighed by the softmax of their gates and a bias.
struct PoolRecent {
    StateRows rows;
    const float *values, *gates;   // [rows, channels]
    const float* bias;             // [taps, channels], the latest row's last
    float* states;                 // [slots, taps - 1, 2 * channels]: values and gates of that many rows, the latest last
    float* y;                      // [rows, channels]
    int64_t channels, taps;
};

// A row of y depends only on its own row and the taps - 1 before it, bit for bit, as for short_conv.
void pool_recent(const PoolRecent& call);

// Each head has a memory, a matrix [key_dim, value_dim], which is multiplied by a key to look up its value:
//
//     memory = exp(decay) * memory
//     memory = memory + key (beta * value)^T, or memory + key (beta * (value - memory^T key))^T by the delta rule
//     y = memory^T query, and skip * value
//
// With probes and removals, what a probe finds in the memory before the decay is removed from the decayed memory:
//
//     memory = exp(decay) * memory - removal (memory^T probe)^T
struct LinearAttention {
    StateRows rows;
    const float *queries, *keys;   // [rows, key_heads, key_dim]
    const float* values;           // [rows, heads, value_dim]
    const float* decays;           // [rows, heads], or per key entry [rows, heads, key_dim]
    const float* betas;            // [rows, heads] or null: 1
    const float* skips;            // [heads] or null
    const float *probes, *removals;   // shaped like keys, or null; not with the delta rule
    float* states;                 // [slots, heads, key_dim, value_dim]
    float* y;                      // [rows, heads, value_dim]
    int64_t heads, key_heads, key_dim, value_dim;
    bool delta, decay_of_keys;
    bool tiled;   // head h has the keys of head h % key_heads, otherwise of h * key_heads / heads
};

// A row's result is the same bits however its sequence is split into calls, and whatever else is in them.
void linear_attention(const LinearAttention& call);

struct RecurrentKernels {
    // One row of a convolution of `width` channels: b * x is convolved, or x if b and c are null. y is c times (or SiLU
    // of, if `activated`) the bias plus the sum of weights[i] * past[i] plus the last weights times the current row,
    // which is stored in `newest`. `after` [taps - 1, width] becomes the state after the row, unless it is null.
    // `nontemporal`: states come from memory, and are written past the caches.
    void (*short_conv)(const float* b, const float* c, const float* x, const float* const* past,
                       const float* weights, const float* bias, int64_t taps, int64_t width, bool activated,
                       bool nontemporal, float* newest, float* after, float* y);
    // One row of means over `taps` rows of `width` channels: y is the sum of values[k] weighed by the softmax over k of
    // gates[k] + bias[k].
    void (*pool)(const float* const* values, const float* const* gates, const float* bias, int64_t taps, int64_t width,
                 float* y);
    // Rows [begin, end) of one sequence, for one head and up to `columns` of the values' columns, from `column` on.
    // `room` is for key_dim * (columns + 1) floats. `nontemporal`: states are written past the caches. `next` is where the
    // memory of the call after this one begins, to be fetched meanwhile, or null.
    void (*linear_attention)(const LinearAttention& call, int64_t head, int64_t column, int64_t begin, int64_t end,
                             bool nontemporal, const float* next, float* room);
    int64_t columns;
};

// For the CPU level in use, unless another is given.
PUNA_DECLARE_KERNELS(RecurrentKernels, recurrent_kernels);

}  // namespace puna
