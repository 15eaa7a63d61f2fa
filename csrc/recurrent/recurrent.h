// The operations of recurrent layers on their last few rows: short convolutions and pools.
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
};

// For the CPU level in use, unless another is given.
PUNA_DECLARE_KERNELS(RecurrentKernels, recurrent_kernels);

}  // namespace puna
