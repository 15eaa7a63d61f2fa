// Attention over index lists: the interface between the planner and the kernels of each instruction set.
#pragma once
#include <cstdint>

#include "core/sets.h"
#include "kv/kv.h"

namespace puna {

// The list of cells is processed in chunks of this size, each with its own softmax, which are merged in order. They
// begin at multiples of it, counted from the start of the list, so a row's result depends neither on the rows computed
// with it nor on the number of threads.
constexpr int attention_chunk = 512;

// The distance between lists of at most `most` entries, each of which begins at a chunk.
inline int64_t list_width(int64_t most) { return (most + attention_chunk - 1) / attention_chunk * attention_chunk; }
// Cells whose keys and values are processed together; part of a chunk.
constexpr int attention_tile = 64;
// The most query vectors (rows times heads that share keys) of a block, unless one row has more: if a chunk's keys and
// values are unpacked for all of them, and if only a tile's are, for which the scores of all are kept.
constexpr int attention_vectors = 576, attention_tile_vectors = 192;
// A chunk's keys and values are unpacked if, as 16-bit integers of up to this many dimensions, they take half of a
// second-level cache. So few vectors are then computed at a time that their scores stay in the first-level cache.
constexpr int attention_kept_dims = 512, attention_piece = 12;

struct AttentionCall {
    const float* q;          // [rows, heads, dim]
    const void* keys;        // [capacity, kv_heads, dim] of key_type
    const void* values;      // value_dim numbers of value_type for each cell and key/value head...
    int64_t value_step;      // ... this many bytes apart; they may be parts of the keys
    const int32_t* cells;
    const int32_t* starts;   // [rows]
    const int32_t* counts;   // [rows]
    const float* sinks;      // [heads] or null
    float* out;              // [rows, heads, value_dim]
    int rows, heads, kv_heads, dim, value_dim;
    KVType key_type, value_type;
    float scale, softcap;
    const float* bias;       // [heads, 2 * reach + 1] or null: added to a score, by the cell's distance
    int reach;
    const int32_t* places;   // [rows], each row's own entry in the list; null: the last that it sees

    int group() const { return heads / kv_heads; }
    // Widths in scratch memory: whole vectors of any instruction set.
    int padded_dim() const { return (dim + 15) / 16 * 16; }
    int padded_value_dim() const { return (value_dim + 15) / 16 * 16; }
    int end(int row) const { return starts[row] + counts[row]; }
    int place(int row) const { return places ? places[row] : end(row) - 1; }
};

// Rows [first, first + rows), which see parts of [begin, end) of the list, and some key/value heads. The query vectors
// are ordered by key/value head, row, head of the group.
struct AttentionBlock {
    int first, rows, kv_head, kv_heads;
    int begin, end;

    int first_chunk() const { return begin / attention_chunk; }
    int end_chunk() const { return end > begin ? (end + attention_chunk - 1) / attention_chunk : first_chunk() + 1; }
};

// The softmax so far of each query vector of a block: the largest score, the sum of 2^(score - largest), and the values
// weighted likewise. Scores are base-2 exponents.
struct AttentionState {
    float* largest;   // [vectors]
    float* sum;       // [vectors]
    float* values;    // [vectors, padded_value_dim]
};

struct AttentionKernels {
    // Whether a chunk's keys and values are unpacked for all vectors of a block, so that it should have many.
    bool (*keeps_chunk)(const AttentionCall&);
    // Prepares a block's queries in `scratch`, of attention_scratch(call, vectors) floats, for any number of its chunks.
    void (*start)(const AttentionCall&, const AttentionBlock&, float* scratch);
    // Computes the state of one chunk of a block.
    void (*chunk)(const AttentionCall&, const AttentionBlock&, int chunk, AttentionState, float* scratch);
    // Adds the state of a later chunk to the state of the earlier ones.
    void (*merge)(const AttentionCall&, int vectors, AttentionState earlier, AttentionState later);
    // Writes the block's rows of the result.
    void (*finish)(const AttentionCall&, const AttentionBlock&, AttentionState);
};

PUNA_DECLARE_KERNELS(AttentionKernels, attention_kernels);

inline int vectors_of(const AttentionCall& call, const AttentionBlock& block) {
    return block.kv_heads * block.rows * call.group();
}

// Distance between the scores of consecutive query vectors: a chunk's scores and a cache line, so that neighbours do
// not compete for the same place in the cache.
constexpr int attention_score_stride = attention_chunk + 16;

// Floats for queries, the units of their integers and of two runs of weights for each; some rows as floats; and scores
// with unpacked keys and values, and their units: of all vectors with a tile, or of a few with a chunk.
inline int64_t attention_scratch(const AttentionCall& call, int vectors) {
    constexpr int max_width = 16;
    const int dim = call.padded_dim(), value_dim = call.padded_value_dim(), width = dim > value_dim ? dim : value_dim;
    const int64_t with_tile = int64_t(vectors) * attention_score_stride + attention_tile * (int64_t(width) + 1);
    const int64_t with_chunk = attention_piece * attention_score_stride + attention_chunk * (attention_kept_dims / 2 + 2);
    return int64_t(vectors) * (dim + 3) + max_width * (int64_t(width) + 1) +
           (with_tile > with_chunk || vectors <= attention_piece ? with_tile : with_chunk);
}

// Computes all rows. The call must be valid: every listed cell exists, and heads is a multiple of kv_heads.
void attention(const AttentionCall& call);

}  // namespace puna
