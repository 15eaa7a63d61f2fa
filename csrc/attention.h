// Attention over index lists: what the planner and the kernels of each instruction set agree on.
#pragma once
#include <cstdint>

#include "core/cpu.h"

namespace puna {

// A row's cells are taken in chunks of this many, each with a softmax of its own, and the chunks merged in order.
// The chunks start at the row's first cell and never depend on threads or on other rows, so nor does the result.
constexpr int attention_chunk = 512;
// Cells whose keys and values are in use at a time; part of a chunk.
constexpr int attention_tile = 64;
// Rows of a block at most.
constexpr int attention_rows = 64;

struct AttentionCall {
    const float* q;          // [rows, heads, dim]
    const void* keys;        // [capacity, kv_heads, dim], halves or floats
    const void* values;      // [capacity, kv_heads, value_dim]
    const int32_t* cells;
    const int32_t* starts;   // [rows]
    const int32_t* counts;   // [rows]
    const float* sinks;      // [heads] or null
    float* out;              // [rows, heads, value_dim]
    int rows, heads, kv_heads, dim, value_dim;
    bool halves;
    float scale, softcap;

    int group() const { return heads / kv_heads; }
    // Widths in scratch memory: whole vectors of any instruction set.
    int padded_dim() const { return (dim + 15) / 16 * 16; }
    int padded_value_dim() const { return (value_dim + 15) / 16 * 16; }
};

// Rows [first, first + rows) that see the same list up to their own counts, and some key/value heads.
// Its query vectors are ordered by key/value head, row, head of the group.
struct AttentionBlock {
    int first, rows, kv_head, kv_heads;
};

// The softmax so far of each query vector of a block: the largest score, the sum of e^(score - largest), and the
// values weighted by the same.
struct AttentionState {
    float* largest;   // [vectors]
    float* sum;       // [vectors]
    float* values;    // [vectors, padded_value_dim]
};

struct AttentionKernels {
    // The state of one chunk of a block. `scratch` holds attention_scratch(call, vectors) floats.
    void (*chunk)(const AttentionCall&, const AttentionBlock&, int chunk, AttentionState, float* scratch);
    // Adds the state of a later chunk to the state of the earlier ones.
    void (*merge)(const AttentionCall&, int vectors, AttentionState earlier, AttentionState later);
    // Writes the block's rows of the result.
    void (*finish)(const AttentionCall&, const AttentionBlock&, AttentionState);
};

inline int vectors_of(const AttentionCall& call, const AttentionBlock& block) {
    return block.kv_heads * block.rows * call.group();
}

inline int64_t attention_scratch(const AttentionCall& call, int vectors) {
    return int64_t(vectors) * (call.padded_dim() + attention_tile) +
           int64_t(attention_tile) * (call.padded_dim() + call.padded_value_dim());
}

extern const AttentionKernels attention_portable;
#if defined(__x86_64__)
extern const AttentionKernels attention_avx2, attention_avx512;
#endif

// All rows. The call must be valid: every listed cell exists, heads is a multiple of kv_heads.
void attention(const AttentionCall& call);

}  // namespace puna
