// Tiles of keys and values as floats, keys transposed, from the cells of a cache. Compiled once per instruction set.
#pragma once
#include "attention/attention.h"
#include "kv/unpack.h"
#include "vector/transpose.h"
#include "vector/vector.h"

namespace puna {
namespace {

constexpr int tile_cells = attention_tile;

PUNA_INLINE int min(int a, int b) { return a < b ? a : b; }
PUNA_INLINE int max(int a, int b) { return a > b ? a : b; }

// Cells of a tile: those a row sees, or all in use.
struct Range {
    int begin, end;

    PUNA_INLINE bool empty() const { return begin >= end; }
    PUNA_INLINE int size() const { return end - begin; }
    // From the first cell of both to the last.
    PUNA_INLINE Range with(Range other) const {
        return other.empty() ? *this : Range{min(begin, other.begin), max(end, other.end)};
    }
    PUNA_INLINE bool operator==(Range other) const { return begin == other.begin && end == other.end; }
};

// The place of one head's rows in a cache.
struct Rows {
    const uint8_t* base;
    int64_t stride;   // bytes from cell to cell
    int64_t bytes;    // of a row
    KVType type;
    int dim, padded;

    PUNA_INLINE const uint8_t* row(int32_t cell) const { return base + cell * stride; }
};

template <KVType type>
void unpack_cells_of(const Rows& rows, const int32_t* cells, int count, float* to) {
    for (int j = 0; j < count; j++, to += rows.padded) unpack<type>(rows.row(cells[j]), rows.dim, to);
}

// Converts the rows of some cells to floats, one after the other.
PUNA_INLINE void unpack_cells(const Rows& rows, const int32_t* cells, int count, float* to) {
    switch (rows.type) {
        case KVType::f32: return unpack_cells_of<KVType::f32>(rows, cells, count, to);
        case KVType::f16: return unpack_cells_of<KVType::f16>(rows, cells, count, to);
        case KVType::bf16: return unpack_cells_of<KVType::bf16>(rows, cells, count, to);
        case KVType::q8_0: return unpack_cells_of<KVType::q8_0>(rows, cells, count, to);
        case KVType::q4_0: return unpack_cells_of<KVType::q4_0>(rows, cells, count, to);
    }
}

// Prefetches the cells of the next tile while this one is computed; they may be scattered, so the hardware cannot
// foresee them. Evenly, because only a dozen requests can be in flight and one more would stall everything; all heads
// of a cell together, because contiguous memory arrives faster.
class CellPrefetcher {
public:
    // `rows` are those of the block's first head. `gather_work` is how much of the time making the tile takes, in percent.
    CellPrefetcher(const int32_t* cells, int count, const Rows& rows, int heads, int gather_work)
        : cell(cells), cells_end(cells + count), base(rows.base), stride(rows.stride), row_bytes(heads * rows.bytes),
          lines_per_head(int(count * ((row_bytes + 63) / 64) / heads)), gather_work(gather_work), near(made_by_amd()) {}

    PUNA_INLINE bool done() const { return at >= end && cell == cells_end; }

    // Lines to prefetch in each of `steps` steps that gather a tile, or multiply with one.
    PUNA_INLINE int lines_of_gathering(int steps) const { return lines(gather_work, steps); }
    PUNA_INLINE int lines_of_multiplying(int steps) const { return lines(100 - gather_work, steps); }

    // Prefetches the next lines: on AMD processors into all caches. On others into the second level, since lines on their
    // way into the first take the buffers that the hardware needs for its own prefetches.
    PUNA_INLINE void prefetch(int lines) { near ? prefetch_lines<3>(lines) : prefetch_lines<2>(lines); }

    // Prefetches all lines that are left, at once.
    PUNA_INLINE void prefetch_all() {
        while (!done()) prefetch(1);
    }

private:
    template <int locality>   // of __builtin_prefetch
    PUNA_INLINE void prefetch_lines(int lines) {
        for (; lines > 0; lines--, at += 64) {
            if (at >= end) {
                if (cell == cells_end) return;
                at = base + *cell++ * stride;
                end = at + row_bytes;
            }
            __builtin_prefetch(at, 0, locality);
        }
    }
    PUNA_INLINE int lines(int percent, int steps) const { return (lines_per_head * percent / 100 + steps - 1) / steps; }

    const int32_t *cell, *cells_end;
    const uint8_t* base;
    int64_t stride, row_bytes;
    int lines_per_head, gather_work;
    bool near;
    const uint8_t *at = nullptr, *end = nullptr;   // what is left of a cell
};
constexpr int depth_part = 16, cells_part = 8;

// Making a tile of floats for a few query vectors takes much of the time; with many, multiplying takes nearly all. Making
// one of integers takes as long as multiplying it with seven vectors.
constexpr int few_gather_work = 60, words_gather_vectors = 7;

// The tile's cell at `j`; cells beyond those in use are replaced by the first or last one in use.
PUNA_INLINE int32_t cell_at(const int32_t* cells, Range used, int j) {
    return cells[max(used.begin, min(j, used.end - 1))];
}

#if defined(__AVX512F__)
// Transposes 32 keys of 16-bit numbers, which is half the work of transposing them as floats.
template <class Load>
PUNA_INLINE void transpose_words_of(const Rows& keys, const int32_t* cells, Range used, int j,
                                    CellPrefetcher& next_tile, float* to, Load load) {
    const int lines = next_tile.lines_of_gathering(tile_cells / 32 * (keys.dim / 8));
    const uint16_t* rows[32];
    for (int i = 0; i < 32; i++) rows[i] = reinterpret_cast<const uint16_t*>(keys.row(cell_at(cells, used, j + i)));
    for (int d = 0; d < keys.dim; d += 8) {
        next_tile.prefetch(lines);
        __m512i columns[8];
        transpose_words(rows, d, columns);
        for (int c = 0; c < 8; c++) {
            float* column = to + (d + c) * tile_cells + j;
            load(_mm512_castsi512_si256(columns[c])).store(column);
            load(_mm512_extracti64x4_epi64(columns[c], 1)).store(column + 16);
        }
    }
}
#endif

// Transposes the keys of the tile's cells in `used`: to[d * tile_cells + j]. `few_keys` has room for a vector's width
// of rows.
void transpose_keys(const Rows& keys, const int32_t* cells, Range used, CellPrefetcher& next_tile, float* few_keys,
                    float* to) {
    int step = Vec::width;
#if defined(__AVX512F__)
    const bool words = (keys.type == KVType::f16 || keys.type == KVType::bf16) && keys.dim % 8 == 0;
    if (words) step = 32;
#endif
    const bool as_stored = keys.type == KVType::f32 && keys.dim % Vec::width == 0;
    for (int j = used.begin / step * step; j < used.end; j += step) {
#if defined(__AVX512F__)
        if (words && keys.type == KVType::f16) {
            transpose_words_of(keys, cells, used, j, next_tile, to,
                               [](__m256i bits) { return Vec{_mm512_cvtph_ps(bits)}; });
            continue;
        }
        if (words) {
            transpose_words_of(keys, cells, used, j, next_tile, to, [](__m256i bits) {
                return Vec{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
            });
            continue;
        }
#endif
        next_tile.prefetch(next_tile.lines_of_gathering(tile_cells / Vec::width));
        int32_t taken[Vec::width];
        for (int i = 0; i < Vec::width; i++) taken[i] = cell_at(cells, used, j + i);
        const float* rows[Vec::width];
        for (int i = 0; i < Vec::width; i++) {
            rows[i] = as_stored ? reinterpret_cast<const float*>(keys.row(taken[i])) : few_keys + i * keys.padded;
        }
        if (!as_stored) unpack_cells(keys, taken, Vec::width, few_keys);
        for (int d = 0; d < keys.dim; d += Vec::width) transpose(rows, d, to + int64_t(d) * tile_cells + j, tile_cells);
    }
}

}  // namespace
}  // namespace puna
