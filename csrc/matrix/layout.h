// How a packed matrix lies in memory.
//
// Rows are packed in groups of R (8, or 16 for 64-byte vectors); the last group is filled up with zero rows.
// A group is a sequence of chunks of 256 columns, a chunk is its scales followed by its numbers, so that a
// kernel reads one stream from front to back. Numbers are interleaved: one vector of 4 R bytes holds 4
// consecutive columns of R rows, which meet one broadcast 4-byte piece of the activations.
//
// Within a block of 32 columns, "quad" q is columns 4q..4q+3:
//   nibbles   4 vectors; vector g holds quad 2g in the low and quad 2g+1 in the high halves of its bytes
//   one bit   1 vector;  bit q of a byte belongs to quad q
//   two bits  2 vectors; bits 2i, 2i+1 of vector h belong to quad 4h+i
//   bytes     8 vectors; vector q is quad q
// Byte-sized scales of two neighbouring blocks lie side by side for each row, [pairs][R][2], the shape in
// which both a shuffle (one block's scales) and a multiply-add with pairs of sums can take them.
//
// Everything is in an unnamed namespace: translation units for different instruction sets must not share it.
#pragma once
#include <cstdint>

namespace puna {

// The layouts, which are also the kernels there are.
enum class Layout : int { f32, f16, bf16, q4_k, q5_k, q6_k, q8_0, q4_0, scaled, count };

constexpr int layout_count = static_cast<int>(Layout::count);
constexpr int chunk_columns = 256;

namespace {

// Super-blocks of 256 with f16 factors and byte-sized scales. Offsets in bytes within a chunk of R rows.
template <int R>
struct Q4K {   // value = d sc q - dmin mn, sc and mn unsigned, one per 32
    static constexpr int d = 0, dmin = 2 * R, scales = 4 * R, mins = scales + 8 * R, low = mins + 8 * R,
                         high = low + 128 * R, bytes = high;
    static constexpr int high_bits = 0;
};

template <int R>
struct Q5K {   // as Q4_K, with a fifth bit
    static constexpr int d = 0, dmin = 2 * R, scales = 4 * R, mins = scales + 8 * R, low = mins + 8 * R,
                         high = low + 128 * R, bytes = high + 32 * R;
    static constexpr int high_bits = 1;
};

template <int R>
struct Q6K {   // value = d sc (q - 32), sc signed, one per 16. d takes twice its room, for alignment
    static constexpr int d = 0, scales = 4 * R, low = scales + 16 * R, high = low + 128 * R,
                         bytes = high + 64 * R;
    static constexpr int high_bits = 2;
};

// Blocks of 32 with an f16 factor each. A chunk of n < 8 blocks (the last one) has n factors per row.
template <int R>
struct Q80 {   // value = d q
    static constexpr int numbers = 32 * R;   // bytes of numbers per block
    static constexpr int block = 2 * R + numbers;
};

template <int R>
struct Q40 {   // value = d (q - 8)
    static constexpr int numbers = 16 * R;
    static constexpr int block = 2 * R + numbers;
};

// What every other type becomes without loss: value = scale q + offset, q signed, a float32 scale and offset
// per 16. In a chunk of n blocks: scales [2n][R], offsets [2n][R], numbers [n][8][R][4].
template <int R>
struct Scaled {
    static constexpr int numbers = 32 * R;
    static constexpr int block = 16 * R + numbers;
};

}  // namespace
}  // namespace puna
