// The choice of the cells that attention reads, by keys of its own: the indexer of sparse attention.
#pragma once
#include <cstdint>

#include "attention/attention.h"
#include "core/sets.h"
#include "kv/kv.h"

namespace puna {

struct IndexerCall {
    const float* q;          // [rows, heads, dim]
    const float* weights;    // [rows, heads]; null if heads choose blocks
    const void* keys;        // [capacity, dim] of key_type
    const int32_t* cells;
    const int32_t* starts;   // [rows]
    const int32_t* counts;   // [rows]
    int rows, heads, dim;
    KVType key_type;
    int most;                // cells chosen for a row that sees more
    int block;               // 0, or the size of the blocks that each head chooses, `most` / block of them
    int local;               // the last blocks of a row, which every head chooses
    int group;               // cells chosen together, by the key of the last of them; divides `most`; 1 with blocks
    int32_t* chosen;         // [lists(), rows, width()]: lists that several rows may share
    int32_t* begins;         // [lists(), rows], each list's begin in `chosen`
    int32_t* lengths;        // [lists(), rows]

    int padded_dim() const { return (dim + 15) / 16 * 16; }
    // Lists of a row. Those of heads have numbers cell * heads + head in the place of cells.
    int lists() const { return block ? heads : 1; }
    // Cells after a row's last whole group follow those chosen.
    int64_t width() const { return list_width(int64_t(most) + group - 1); }
    bool keeps_all(int row) const { return counts[row] / group <= most / group; }
};

struct IndexerKernels {
    // Computes the scores of entries [begin, end) of a row's list. Writes whole vectors, so up to 15 floats more.
    // `scratch` holds indexer_scratch(call) floats.
    void (*score)(const IndexerCall&, int row, int begin, int end, float* scores, float* scratch);
    // The same for each head's products with the keys, which are `stride` floats apart.
    void (*multiply)(const IndexerCall&, int row, int begin, int end, float* products, int64_t stride, float* scratch);
};

PUNA_DECLARE_KERNELS(IndexerKernels, indexer_kernels);

// Floats for some keys as stored, a tile of transposed keys, and its products with the queries of all heads.
inline int64_t indexer_scratch(const IndexerCall& call) {
    constexpr int max_width = 16;
    return int64_t(max_width + attention_tile) * call.padded_dim() + int64_t(attention_tile) * call.heads;
}

// Chooses the cells of all rows. The call must be valid: every listed cell exists.
void choose_cells(const IndexerCall& call);
// The same for blocks of cells, which each head chooses.
void choose_blocks(const IndexerCall& call);

}  // namespace puna
