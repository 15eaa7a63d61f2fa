#include "matrix/pack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "core/half.h"
#include "core/pool.h"

namespace puna {
namespace {

Layout layout_of(FileType type) {
    switch (type) {
        case FileType::f32: return Layout::f32;
        case FileType::f16: return Layout::f16;
        case FileType::bf16: return Layout::bf16;
        case FileType::q4_k: return Layout::q4_k;
        case FileType::q5_k: return Layout::q5_k;
        case FileType::q6_k: return Layout::q6_k;
        case FileType::q4_0: return Layout::q4_0;
        // Signed numbers of at most 8 bits times an f16 factor per 32: the same thing as Q8_0.
        case FileType::q8_0: case FileType::q5_0: case FileType::iq4_nl: return Layout::q8_0;
        default: return Layout::scaled;
    }
}

// Where column `column` (0..31 of a block) of row `row` is among the vectors of its block.
template <int R>
struct Place {
    int quad, byte;   // byte within a vector of 4 R
    Place(int column, int row) : quad(column / 4), byte(4 * row + column % 4) {}
    int nibble() const { return quad / 2 * 4 * R + byte; }
    int nibble_shift() const { return 4 * (quad % 2); }
    int two_bits() const { return quad / 4 * 4 * R + byte; }
    int two_bits_shift() const { return 2 * (quad % 4); }
    int whole() const { return quad * 4 * R + byte; }
};

template <int R>
int pair_place(int block, int row) { return block / 2 * 2 * R + 2 * row + block % 2; }

void put16(uint8_t* to, const uint8_t* from) { std::memcpy(to, from, 2); }

// The chunk was zeroed; numbers are or-ed in.
template <int R, class L>
void pack_super_block(const uint8_t* source, FileType type, int row, uint8_t* chunk) {
    Block block;
    block_type(type)->decode(source, block);
    const int shift = type == FileType::q6_k ? 32 : 0;
    for (int i = 0; i < 256; i++) {
        const int b = i / 32, value = block.q[i] + shift;
        const Place<R> place(i % 32, row);
        chunk[L::low + b * 16 * R + place.nibble()] |= static_cast<uint8_t>((value & 15) << place.nibble_shift());
        if (L::high_bits == 1) {
            chunk[L::high + b * 4 * R + place.byte] |= static_cast<uint8_t>((value >> 4) << place.quad);
        } else if (L::high_bits == 2) {
            chunk[L::high + b * 8 * R + place.two_bits()] |=
                static_cast<uint8_t>((value >> 4) << place.two_bits_shift());
        }
    }
}

template <int R, class L>
void pack_scales_k4(const uint8_t* source, int row, uint8_t* chunk) {
    put16(chunk + L::d + 2 * row, source);
    put16(chunk + L::dmin + 2 * row, source + 2);
    uint8_t scales[8], mins[8];
    unpack_scales_k4(source + 4, scales, mins);
    for (int b = 0; b < 8; b++) {
        chunk[L::scales + pair_place<R>(b, row)] = scales[b];
        chunk[L::mins + pair_place<R>(b, row)] = mins[b];
    }
}

template <int R>
void pack_q6_k_scales(const uint8_t* source, int row, uint8_t* chunk) {
    put16(chunk + Q6K<R>::d + 2 * row, source + 208);
    for (int b = 0; b < 16; b++) chunk[Q6K<R>::scales + pair_place<R>(b, row)] = source[192 + b];
}

// One row of one chunk. `blocks` is the number of 32-column blocks in it.
template <int R>
void pack_row_chunk(Layout layout, FileType type, const uint8_t* source, int blocks, int row, uint8_t* chunk) {
    if (layout == Layout::q4_k) {
        pack_super_block<R, Q4K<R>>(source, type, row, chunk);
        pack_scales_k4<R, Q4K<R>>(source, row, chunk);
    } else if (layout == Layout::q5_k) {
        pack_super_block<R, Q5K<R>>(source, type, row, chunk);
        pack_scales_k4<R, Q5K<R>>(source, row, chunk);
    } else if (layout == Layout::q6_k) {
        pack_super_block<R, Q6K<R>>(source, type, row, chunk);
        pack_q6_k_scales<R>(source, row, chunk);
    } else if (layout == Layout::q8_0 || layout == Layout::q4_0) {
        const BlockType& of = *block_type(type);
        uint8_t* numbers = chunk + 2 * R * blocks;
        for (int b = 0; b < blocks; b++, source += of.bytes) {
            Block block;
            of.decode(source, block);
            put16(chunk + 2 * (R * b + row), source);   // all these types start with their factor
            for (int i = 0; i < 32; i++) {
                const Place<R> place(i, row);
                if (layout == Layout::q8_0) {
                    numbers[b * Q80<R>::numbers + place.whole()] = static_cast<uint8_t>(block.q[i]);
                } else {
                    numbers[b * Q40<R>::numbers + place.nibble()] |=
                        static_cast<uint8_t>((block.q[i] + 8) << place.nibble_shift());
                }
            }
        }
    } else {
        const BlockType& of = *block_type(type);
        float* scales = reinterpret_cast<float*>(chunk);
        float* offsets = scales + 2 * R * blocks;
        uint8_t* numbers = chunk + 16 * R * blocks;
        for (int first = 0; first < blocks; first += of.elements / 32, source += of.bytes) {
            Block block;
            of.decode(source, block);
            for (int g = 0; g < of.elements / 16; g++) {
                scales[(2 * first + g) * R + row] = block.scale[g];
                offsets[(2 * first + g) * R + row] = block.offset[g];
            }
            for (int i = 0; i < of.elements; i++) {
                const int b = first + i / 32;
                numbers[b * Scaled<R>::numbers + Place<R>(i % 32, row).whole()] = static_cast<uint8_t>(block.q[i]);
            }
        }
    }
}

template <class Number>
void pack_numbers(const uint8_t* source, int64_t columns, int group_rows, int row, uint8_t* group) {
    for (int64_t k = 0; k < columns; k++) {
        std::memcpy(group + (k * group_rows + row) * static_cast<int64_t>(sizeof(Number)),
                    source + k * static_cast<int64_t>(sizeof(Number)), sizeof(Number));
    }
}

void pack_row(Layout layout, FileType type, const uint8_t* source, int64_t columns, int group_rows, int row,
              uint8_t* group) {
    if (layout == Layout::f32) return pack_numbers<uint32_t>(source, columns, group_rows, row, group);
    if (scaling_of(layout) == Scaling::none) return pack_numbers<uint16_t>(source, columns, group_rows, row, group);
    const BlockType& of = *block_type(type);
    for (int64_t k = 0; k < columns; k += chunk_columns) {
        const int blocks = static_cast<int>(std::min<int64_t>(columns - k, chunk_columns) / 32);
        const uint8_t* from = source + k / of.elements * of.bytes;
        uint8_t* chunk = group + packed_bytes(layout, group_rows, k);
        if (group_rows == 8) pack_row_chunk<8>(layout, type, from, blocks, row, chunk);
        else pack_row_chunk<16>(layout, type, from, blocks, row, chunk);
    }
}

template <int R, class L>
void unpack_super_block(const uint8_t* chunk, int row, int shift, Block& block) {
    for (int i = 0; i < 256; i++) {
        const int b = i / 32;
        const Place<R> place(i % 32, row);
        int value = chunk[L::low + b * 16 * R + place.nibble()] >> place.nibble_shift() & 15;
        if (L::high_bits == 1) value |= (chunk[L::high + b * 4 * R + place.byte] >> place.quad & 1) << 4;
        if (L::high_bits == 2) {
            value |= (chunk[L::high + b * 8 * R + place.two_bits()] >> place.two_bits_shift() & 3) << 4;
        }
        block.q[i] = static_cast<int8_t>(value - shift);
    }
}

float half_at(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return float_from_half(bits);
}

template <int R, class L>
void unpack_scales_k4(const uint8_t* chunk, int row, Block& block) {
    const float d = half_at(chunk + L::d + 2 * row), dmin = half_at(chunk + L::dmin + 2 * row);
    for (int g = 0; g < 16; g++) {
        block.scale[g] = d * static_cast<float>(chunk[L::scales + pair_place<R>(g / 2, row)]);
        block.offset[g] = -(dmin * static_cast<float>(chunk[L::mins + pair_place<R>(g / 2, row)]));
    }
}

template <int R>
void unpack_row_chunk(Layout layout, const uint8_t* chunk, int blocks, int row, Block& block) {
    if (layout == Layout::q4_k) {
        unpack_super_block<R, Q4K<R>>(chunk, row, 0, block);
        unpack_scales_k4<R, Q4K<R>>(chunk, row, block);
    } else if (layout == Layout::q5_k) {
        unpack_super_block<R, Q5K<R>>(chunk, row, 0, block);
        unpack_scales_k4<R, Q5K<R>>(chunk, row, block);
    } else if (layout == Layout::q6_k) {
        unpack_super_block<R, Q6K<R>>(chunk, row, 32, block);
        const float d = half_at(chunk + Q6K<R>::d + 2 * row);
        for (int g = 0; g < 16; g++) {
            const auto scale = static_cast<int8_t>(chunk[Q6K<R>::scales + pair_place<R>(g, row)]);
            block.scale[g] = d * static_cast<float>(scale);
            block.offset[g] = 0;
        }
    } else if (layout == Layout::q8_0 || layout == Layout::q4_0) {
        const uint8_t* numbers = chunk + 2 * R * blocks;
        for (int g = 0; g < 2 * blocks; g++) {
            block.scale[g] = half_at(chunk + 2 * (R * (g / 2) + row));
            block.offset[g] = 0;
        }
        for (int i = 0; i < 32 * blocks; i++) {
            const Place<R> place(i % 32, row);
            if (layout == Layout::q8_0) {
                block.q[i] = static_cast<int8_t>(numbers[i / 32 * Q80<R>::numbers + place.whole()]);
            } else {
                const uint8_t both = numbers[i / 32 * Q40<R>::numbers + place.nibble()];
                block.q[i] = static_cast<int8_t>((both >> place.nibble_shift() & 15) - 8);
            }
        }
    } else {
        const float* scales = reinterpret_cast<const float*>(chunk);
        const float* offsets = scales + 2 * R * blocks;
        const uint8_t* numbers = chunk + 16 * R * blocks;
        for (int g = 0; g < 2 * blocks; g++) {
            block.scale[g] = scales[g * R + row];
            block.offset[g] = offsets[g * R + row];
        }
        for (int i = 0; i < 32 * blocks; i++) {
            block.q[i] =
                static_cast<int8_t>(numbers[i / 32 * Scaled<R>::numbers + Place<R>(i % 32, row).whole()]);
        }
    }
}

uint8_t* allocate(size_t bytes) {
    // Whole huge pages where the system gives them: streaming through 4 KiB pages costs a tenth of the speed.
    constexpr size_t huge = size_t{2} << 20;
    void* memory = nullptr;
    if (posix_memalign(&memory, bytes < huge ? 64 : huge, bytes ? bytes : 64) != 0) throw std::bad_alloc();
#if defined(__linux__)
    if (bytes >= huge) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<uint8_t*>(memory);
}

}  // namespace

void PackedMatrix::Free::operator()(uint8_t* p) const { std::free(p); }

int64_t packed_bytes(Layout layout, int group_rows, int64_t columns) {
    const auto super = [&](int bytes8, int bytes16) { return columns / 256 * (group_rows == 8 ? bytes8 : bytes16); };
    const auto blocks = [&](int bytes8, int bytes16) { return columns / 32 * (group_rows == 8 ? bytes8 : bytes16); };
    switch (layout) {
        case Layout::f32: return columns * group_rows * 4;
        case Layout::f16: case Layout::bf16: return columns * group_rows * 2;
        case Layout::q4_k: return super(Q4K<8>::bytes, Q4K<16>::bytes);
        case Layout::q5_k: return super(Q5K<8>::bytes, Q5K<16>::bytes);
        case Layout::q6_k: return super(Q6K<8>::bytes, Q6K<16>::bytes);
        case Layout::q8_0: return blocks(Q80<8>::block, Q80<16>::block);
        case Layout::q4_0: return blocks(Q40<8>::block, Q40<16>::block);
        default: return blocks(Scaled<8>::block, Scaled<16>::block);
    }
}

void unpack_chunk(Layout layout, int group_rows, const uint8_t* chunk, int64_t columns, int row, Block& block) {
    const int blocks = static_cast<int>(columns / 32);
    if (group_rows == 8) unpack_row_chunk<8>(layout, chunk, blocks, row, block);
    else unpack_row_chunk<16>(layout, chunk, blocks, row, block);
}

PackedMatrix::PackedMatrix(const uint8_t* data, size_t bytes, FileType type, int64_t rows, int64_t columns)
    : kernels_(&matrix_kernels(layout_of(type))), layout_(layout_of(type)), rows_(rows), columns_(columns) {
    const BlockType* of = block_type(type);
    if (!of) throw std::invalid_argument("type " + std::to_string(static_cast<int>(type)) + " has no kernel");
    if (rows < 0 || columns < 0 || columns % of->elements != 0) {
        throw std::invalid_argument("a row of " + std::to_string(columns) + " values does not fill blocks of " +
                                    std::to_string(of->elements));
    }
    const int64_t row_bytes = columns / of->elements * of->bytes;
    if (static_cast<uint64_t>(rows) * static_cast<uint64_t>(row_bytes) != bytes) {
        throw std::invalid_argument("a matrix of " + std::to_string(rows) + " rows takes " +
                                    std::to_string(rows * row_bytes) + " bytes, not " + std::to_string(bytes));
    }
    const int R = kernels_->rows;
    groups_ = (rows + R - 1) / R;
    stride_ = (packed_bytes(layout_, R, columns) + 63) / 64 * 64;
    data_.reset(allocate(this->bytes()));
    uint8_t* packed = data_.get();
    parallel_for(groups_, [&](int64_t g, int) {
        uint8_t* group = packed + g * stride_;
        std::memset(group, 0, static_cast<size_t>(stride_));
        for (int r = 0; r < R && g * R + r < rows; r++) {
            pack_row(layout_, type, data + (g * R + r) * row_bytes, columns, R, r, group);
        }
    });
}

void PackedMatrix::unpack_row(int64_t row, float* values) const {
    const int R = kernels_->rows, r = static_cast<int>(row % R);
    const uint8_t* source = group(row / R);
    if (scaling_of(layout_) == Scaling::none) {
        for (int64_t k = 0; k < columns_; k++) {
            const int64_t at = k * R + r;
            if (layout_ == Layout::f32) std::memcpy(values + k, source + 4 * at, 4);
            else if (layout_ == Layout::f16) values[k] = half_at(source + 2 * at);
            else values[k] = float_from_bfloat(reinterpret_cast<const uint16_t*>(source)[at]);
        }
        return;
    }
    Block block;
    for (int64_t k = 0; k < columns_; k += chunk_columns) {
        const int64_t n = std::min<int64_t>(columns_ - k, chunk_columns);
        unpack_chunk(layout_, R, source + packed_bytes(layout_, R, k), n, r, block);
        for (int64_t i = 0; i < n; i++) {
            values[k + i] = block.scale[i / 16] * static_cast<float>(block.q[i]) + block.offset[i / 16];
        }
    }
}

}  // namespace puna
