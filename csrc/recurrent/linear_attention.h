// Linear attention with a memory: gated delta networks, Mamba 2, RWKV 6 and 7.
#pragma once
#include <cstdint>

#include "core/sets.h"
#include "recurrent/recurrent.h"

namespace puna {

// Additions after which a memory becomes a base of its own.
constexpr int64_t additions_per_base = 8;

// The memories of slots. A memory is written only every few rows; in between, what was added since is kept beside it:
//
//     memory = factors * base + sum over additions of share * key value^T
//
// so that a step reads the base of a memory, and writes about a fifth as much. After `additions_per_base` additions,
// the memory becomes a base of its own. So its bits depend only on the rows since the sequence's first, however these
// were cut into calls. Slots with the same base share it. Slots never written are zero.
struct Memories {
    float* bases;       // [slots + 1, heads, key_dim, value_dim]; the first is always zero
    float* additions;   // [slots, heads, additions_size]: keys [additions_per_base - 1, key_dim], values
                        // [additions_per_base - 1, value_dim], factors of the base [key_dim], and shares
                        // [additions_per_base - 1]
    int32_t *base_of, *counts;   // of each slot: its base, and its number of additions
    int32_t* references;         // of each base but the first: slots that have it
    int64_t slots;
};

// Floats beside a head's base, up to a whole cache line.
constexpr int64_t additions_size(int64_t key_dim, int64_t value_dim) {
    return ((additions_per_base - 1) * (key_dim + value_dim + 1) + key_dim + 15) / 16 * 16;
}

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
    const float* decays;           // [rows, heads], or per key entry [rows, heads, key_dim]; at most 0
    const float* betas;            // [rows, heads] or null: 1
    const float* skips;            // [heads] or null
    const float *probes, *removals;   // shaped like keys, or null; not with the delta rule
    Memories memories;
    float* y;                      // [rows, heads, value_dim]
    int64_t heads, key_heads, key_dim, value_dim;
    bool delta, decay_of_keys;
    bool tiled;   // head h has the keys of head h % key_heads, otherwise of h * key_heads / heads

    // Additions of a row: with removals also what is removed.
    int64_t additions_of_row() const { return probes ? 2 : 1; }
};

// A row's result is the same bits however its sequence is split into calls, and whatever else is in them.
void linear_attention(const LinearAttention& call);

struct LinearAttentionKernels {
    struct Ahead {
        const float* base = nullptr;   // from its first column on, or null
        const float* additions;        // of its head
        int64_t count;                 // of them
    };
    // Rows [begin, end) of one sequence, for one head and up to `columns` of the values' columns, from `column` on. The
    // memory after a row becomes the base `new_bases[row]`, unless that is -1. `nontemporal`: it is written past the
    // caches. `next` is what the call after this one reads, to be fetched meanwhile. `room` is for room_size(key_dim)
    // floats.
    void (*rows)(const LinearAttention& call, const int32_t* new_bases, int64_t head, int64_t column, int64_t begin,
                 int64_t end, bool nontemporal, const Ahead& next, float* room);
    int64_t (*room_size)(int64_t key_dim);
    int64_t columns;
};

// For the CPU level in use, unless another is given.
PUNA_DECLARE_KERNELS(LinearAttentionKernels, linear_attention_kernels);

}  // namespace puna
