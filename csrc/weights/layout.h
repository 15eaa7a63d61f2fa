// The layout of a packed matrix in memory.
//
// Rows are packed in groups of R: 8, or 16 with vectors of 64 bytes; the last group is padded with zero rows. A group
// is a sequence of chunks of 256 columns (the last one may be shorter), a chunk is its scales followed by its numbers,
// so that a kernel reads one stream from front to back. Numbers are interleaved: one vector of 4 R bytes holds 4
// consecutive columns of R rows, which are multiplied by one broadcast 4-byte piece of the activations.
//
// Within a block of 32 columns, "quad" q is columns 4q..4q+3. A number's bits lie in one or two planes:
//   8 bits   8 vectors; vector q is quad q
//   4 bits   4 vectors; vector g holds quad 2g in the low and quad 2g+1 in the high halves of its bytes
//   2 bits   2 vectors; bits 2i, 2i+1 of vector h belong to quad 4h+i
//   1 bit    1 vector;  bit q of a byte belongs to quad q
//
// The IQ1, IQ2 and IQ3 types keep the indices of their points (points.h). For multiplication they are converted to the
// form above, with 8 bits, and with d as float32 in place of d and dmin. Their chunks are d [R], 4-bit scales, those of
// two adjacent groups of columns in one byte, [pairs][R], then four sections of 64 columns: the lower 8 bits of the
// indices, [points][R], the other bits in one word per row, lowest first, [R], and the signs of 32 columns each in a
// plane of 1 bit.
//
// Everything is in an unnamed namespace: translation units for different instruction sets must not share it.
#pragma once
#include "weights/codebook.h"
#include "weights/points.h"

namespace puna {

// The layouts, each with its own kernels. A quantised one is named after its type in the file.
enum class Layout : int {
    f32, f16, bf16, q4_k, q5_k, q6_k, q2_k, q3_k, iq4_xs, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, mxfp4, ternary,
    iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq1_s, iq1_m, count,
    // Not of matrices: what products for many tokens make of other layouts.
    q4_k_bytes, q5_k_bytes, q6_k_bytes, q3_k_bytes
};

constexpr int layout_count = static_cast<int>(Layout::count);
constexpr int chunk_columns = 256;

namespace {

// A value is d * scale * (number - excess) - dmin * min in super-blocks, d * (number - excess) + m in blocks.
struct Format {
    int low_bits, high_bits;   // the planes of a number
    Codebook codebook;         // of the numbers, if they are not values themselves
    bool is_signed;            // the number, or its codebook entry, is a signed byte; otherwise it is >= 0
    int excess;                // 0 or a power of two
    bool super;                // f16 factors per 256 columns and byte-sized scales, or a factor per 32 columns
    int group;                 // columns that share a scale
    bool signed_scales;
    bool mins;
    bool scales = true;        // if not, all are 1
    Grid grid = Grid::none;    // the grid, if points are packed instead of numbers
    int used_bits = 0;         // of a number whose planes have more, or 0

    constexpr bool floats() const { return low_bits == 0; }
    constexpr int bits() const {
        if (grid != Grid::none) return excess == 64 ? 7 : 5;
        if (used_bits > 0) return used_bits;
        return codebook == Codebook::mxfp4 ? 5 : is_signed ? 8 : low_bits + high_bits;
    }
};

// The format of points of which `group` columns share a scale.
constexpr Format format_of_points(Grid grid, int group) {
    return {8, 0, Codebook::none, false, shape_of(grid).excess, true, group, false, false, true, grid};
}

// The same format with each number in a byte.
constexpr Format as_bytes(Format format) {
    format.used_bits = format.bits();
    format.low_bits = 8, format.high_bits = 0;
    return format;
}

constexpr Format format_of(Layout layout) {
    switch (layout) {
        case Layout::q4_k: return {4, 0, Codebook::none, false, 0, true, 32, false, true};
        case Layout::q5_k: return {4, 1, Codebook::none, false, 0, true, 32, false, true};
        case Layout::q6_k: return {4, 2, Codebook::none, false, 32, true, 16, true, false};
        case Layout::q2_k: return {2, 0, Codebook::none, false, 0, true, 16, false, true};
        case Layout::q3_k: return {2, 1, Codebook::none, false, 4, true, 16, true, false};
        case Layout::iq4_xs: return {4, 0, Codebook::iq4_nl, true, 0, true, 32, true, false};
        case Layout::q8_0: return {8, 0, Codebook::none, true, 0, false, 32, false, false};
        case Layout::q4_0: return {4, 0, Codebook::none, false, 8, false, 32, false, false};
        case Layout::q4_1: return {4, 0, Codebook::none, false, 0, false, 32, false, true};
        case Layout::q5_0: return {4, 1, Codebook::none, false, 16, false, 32, false, false};
        case Layout::q5_1: return {4, 1, Codebook::none, false, 0, false, 32, false, true};
        case Layout::iq4_nl: return {4, 0, Codebook::iq4_nl, true, 0, false, 32, false, false};
        // Products use the codebook's entries plus 16, so that none is negative. Factors are powers of two beyond the
        // range of f16; bf16 holds them all.
        case Layout::mxfp4: return {4, 0, Codebook::mxfp4, false, 16, false, 32, false, false};
        case Layout::ternary: return {2, 0, Codebook::none, false, 1, true, 32, false, false, false};
        case Layout::iq2_xxs: return format_of_points(Grid::iq2_xxs, 32);
        case Layout::iq2_xs: return format_of_points(Grid::iq2_xs, 16);
        case Layout::iq2_s: return format_of_points(Grid::iq2_s, 16);
        case Layout::iq3_xxs: return format_of_points(Grid::iq3_xxs, 32);
        case Layout::iq3_s: return format_of_points(Grid::iq3_s, 32);
        case Layout::iq1_s: return format_of_points(Grid::iq1, 32);
        case Layout::iq1_m: return format_of_points(Grid::iq1, 16);
        case Layout::q4_k_bytes: return as_bytes(format_of(Layout::q4_k));
        case Layout::q5_k_bytes: return as_bytes(format_of(Layout::q5_k));
        case Layout::q6_k_bytes: return as_bytes(format_of(Layout::q6_k));
        case Layout::q3_k_bytes: return as_bytes(format_of(Layout::q3_k));
        default: return {};
    }
}

// Positions in bytes. In super-blocks from the start of a chunk of 256: d [R], dmin [R], scales, mins, low plane, high
// plane. Scales of two adjacent groups of columns lie side by side for each row, [pairs][R][2]: the shape in which a
// shuffle (one group's) and a multiply-add (with pairs of sums) read them. In blocks, a chunk of n has factors [n][R]
// and mins [n][R] of 2 bytes each, then the blocks' planes.
struct Offsets {
    int rows;   // R
    Format format;

    constexpr int low_plane() const { return 4 * format.low_bits * rows; }   // of a block of 32 columns
    constexpr int planes() const { return 4 * (format.low_bits + format.high_bits) * rows; }

    constexpr int scales() const { return 4 * rows; }
    constexpr int scale_bytes() const { return format.scales ? 256 / format.group * rows : 0; }
    constexpr int mins() const { return scales() + scale_bytes(); }
    constexpr int numbers() const { return mins() + (format.mins ? scale_bytes() : 0); }
    constexpr int high_numbers() const { return numbers() + 8 * low_plane(); }
    constexpr int super_block() const { return numbers() + 8 * planes(); }

    constexpr int factors() const { return 2 * rows; }   // of one block
    constexpr int header() const { return format.mins ? 2 * factors() : factors(); }
    constexpr int block() const { return header() + planes(); }
};

constexpr Offsets offsets_of(Layout layout, int rows) { return {rows, format_of(layout)}; }

// The layout of the bytes that products convert numbers or points to. Points that convert to the same numbers share
// the first one's products.
constexpr Layout bytes_of(Layout layout) {
    if (layout == Layout::q4_k) return Layout::q4_k_bytes;
    if (layout == Layout::q5_k) return Layout::q5_k_bytes;
    if (layout == Layout::q6_k) return Layout::q6_k_bytes;
    if (layout == Layout::q3_k) return Layout::q3_k_bytes;
    const Format format = format_of(layout);
    for (int i = 0; i < layout_count; i++) {
        const Format other = format_of(static_cast<Layout>(i));
        const bool same = other.excess == format.excess && other.group == format.group;
        if (same && other.grid != Grid::none) return static_cast<Layout>(i);
    }
    return layout;
}

// Positions of packed points: scales and sections from the start of a chunk, the rest from the start of a section.
struct PointOffsets {
    int rows;   // R
    Format format;

    constexpr GridShape shape() const { return shape_of(format.grid); }
    constexpr int points() const { return 64 / shape().coordinates; }   // of a section
    constexpr int scales() const { return 2 * rows; }
    constexpr int sections() const { return scales() + 128 / format.group * rows; }
    constexpr int high() const { return points() * rows; }
    constexpr int high_bits() const { return shape().index_bits - 8; }   // of an index
    constexpr int word() const { return points() * high_bits() / 8; }    // bytes per row
    constexpr int signs() const { return high() + word() * rows; }
    constexpr int section() const { return signs() + (shape().signs ? 8 * rows : 0); }
    constexpr int chunk() const { return sections() + 4 * section(); }
};

constexpr PointOffsets point_offsets_of(Layout layout, int rows) { return {rows, format_of(layout)}; }

}  // namespace
}  // namespace puna
