// The recurrence of Mamba 1, whose decay differs for every entry of the state.
#pragma once
#include <cstdint>

#include "core/sets.h"
#include "recurrent/recurrent.h"

namespace puna {

// Each channel has a state, a vector [state_dim]; keys and queries are shared by all channels:
//
//     state = exp(step * rates) * state + step * x * key
//     y = state . query + skip * x
struct SelectiveScan {
    StateRows rows;
    const float *x, *steps;        // [rows, channels]
    const float* rates;            // [state_dim, channels], below 0
    const float *keys, *queries;   // [rows, state_dim]
    const float* skips;            // [channels]
    float* states;                 // [slots, state_dim, channels]
    float* y;                      // [rows, channels]
    int64_t channels, state_dim;
};

// A row's result is the same bits however its sequence is split into calls, and whatever else is in them.
void selective_scan(const SelectiveScan& call);

struct ScanKernels {
    // Rows [begin, end) of one sequence; up to `columns` channels from `channel` on. `room` is for state_dim * columns
    // floats.
    void (*selective_scan)(const SelectiveScan& call, int64_t channel, int64_t begin, int64_t end, float* room);
    int64_t columns;
};

// For the CPU level in use, unless another is given.
PUNA_DECLARE_KERNELS(ScanKernels, scan_kernels);

}  // namespace puna
