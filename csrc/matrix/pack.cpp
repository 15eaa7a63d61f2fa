#include "matrix/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/pool.h"
#include "matrix/pack_points.h"
#include "vector/half.h"

namespace puna {

Layout layout_of(FileType type) {
    switch (type) {
        case FileType::f32: return Layout::f32;
        case FileType::f16: return Layout::f16;
        case FileType::bf16: return Layout::bf16;
        case FileType::q4_0: return Layout::q4_0;
        case FileType::q4_1: return Layout::q4_1;
        case FileType::q5_0: return Layout::q5_0;
        case FileType::q5_1: return Layout::q5_1;
        case FileType::q8_0: return Layout::q8_0;
        case FileType::q3_k: return Layout::q3_k;
        case FileType::q4_k: return Layout::q4_k;
        case FileType::q5_k: return Layout::q5_k;
        case FileType::q6_k: return Layout::q6_k;
        case FileType::iq4_nl: return Layout::iq4_nl;
        case FileType::iq4_xs: return Layout::iq4_xs;
        case FileType::mxfp4: return Layout::mxfp4;
        case FileType::tq1_0: case FileType::tq2_0: return Layout::ternary;
        case FileType::iq2_xxs: return Layout::iq2_xxs;
        case FileType::iq2_xs: return Layout::iq2_xs;
        case FileType::iq2_s: return Layout::iq2_s;
        case FileType::iq3_xxs: return Layout::iq3_xxs;
        case FileType::iq3_s: return Layout::iq3_s;
        case FileType::iq1_s: return Layout::iq1_s;
        case FileType::iq1_m: return Layout::iq1_m;
        case FileType::q2_k: break;
    }
    return Layout::q2_k;
}

namespace {

// Scales and mins of a super-block as the file stores them; dmin and mins only if its layout has mins.
struct RawScales {
    uint16_t d, dmin;
    uint8_t scales[16], mins[16];
};

RawScales super_scales(FileType type, const uint8_t* p) {
    RawScales raw{};
    switch (type) {
        case FileType::q4_k: case FileType::q5_k:
            raw.d = bits_at(p), raw.dmin = bits_at(p + 2);
            unpack_scales_k4(p + 4, raw.scales, raw.mins);
            break;
        case FileType::q6_k:
            raw.d = bits_at(p + 208);
            std::memcpy(raw.scales, p + 192, 16);
            break;
        case FileType::q2_k:
            raw.d = bits_at(p + 80), raw.dmin = bits_at(p + 82);
            for (int g = 0; g < 16; g++) raw.scales[g] = p[g] & 15, raw.mins[g] = p[g] >> 4;
            break;
        case FileType::q3_k:
            raw.d = bits_at(p + 108);
            unpack_scales_k3(p + 96, reinterpret_cast<int8_t*>(raw.scales));
            break;
        case FileType::iq4_xs:
            raw.d = bits_at(p);
            unpack_scales_iq4_xs(p + 2, reinterpret_cast<int8_t*>(raw.scales));
            break;
        default: raw.d = bits_at(p + (type == FileType::tq1_0 ? 52 : 64));   // ternary
    }
    return raw;
}

// The stored form of a block's value.
uint8_t stored_number(const Format& format, int value) {
    if (format.codebook == Codebook::none) return static_cast<uint8_t>(value + format.excess);
    const int8_t* entries = entries_of(format.codebook);
    return static_cast<uint8_t>(std::find(entries, entries + 16, value) - entries);
}

// The position of quad q's bits, which a plane `bits` wide holds at `byte` of a vector: the vector, and the shift.
struct Bit {
    int vector, shift;
    Bit(int quad, int bits) : vector(quad / (8 / bits)), shift(bits * (quad % (8 / bits))) {}
};

// Where each block's planes begin in a chunk of `blocks` blocks of 32 columns.
class Planes {
public:
    Planes(const Offsets& offsets, int blocks) {
        const bool super = offsets.format.super;   // all low planes precede the high ones
        low_ = super ? offsets.numbers() : offsets.header() * blocks;
        high_ = super ? offsets.high_numbers() : low_ + offsets.low_plane();
        low_step_ = super ? offsets.low_plane() : offsets.planes();
        high_step_ = super ? offsets.planes() - offsets.low_plane() : offsets.planes();
    }
    int low(int block) const { return low_ + block * low_step_; }
    int high(int block) const { return high_ + block * high_step_; }

private:
    int low_, high_, low_step_, high_step_;
};

// Writes the number of column `column` (of a block whose planes, zeroed before, start at `low` and `high`).
void put_number(const Offsets& offsets, uint8_t* low, uint8_t* high, int column, int row, uint8_t number) {
    const int byte = 4 * row + column % 4, vector = 4 * offsets.rows, low_bits = offsets.format.low_bits;
    const Bit at(column / 4, low_bits);
    low[at.vector * vector + byte] |= static_cast<uint8_t>((number & ((1 << low_bits) - 1)) << at.shift);
    if (const int high_bits = offsets.format.high_bits) {
        const Bit above(column / 4, high_bits);
        high[above.vector * vector + byte] |= static_cast<uint8_t>((number >> low_bits) << above.shift);
    }
}

int get_number(const Offsets& offsets, const uint8_t* low, const uint8_t* high, int column, int row) {
    const int byte = 4 * row + column % 4, vector = 4 * offsets.rows, low_bits = offsets.format.low_bits;
    const Bit at(column / 4, low_bits);
    int number = low[at.vector * vector + byte] >> at.shift & ((1 << low_bits) - 1);
    if (const int high_bits = offsets.format.high_bits) {
        const Bit above(column / 4, high_bits);
        number |= (high[above.vector * vector + byte] >> above.shift & ((1 << high_bits) - 1)) << low_bits;
    }
    const Format& format = offsets.format;
    if (format.codebook != Codebook::none) return entries_of(format.codebook)[number];
    return format.is_signed ? static_cast<int8_t>(number) : number - format.excess;
}

int pair_place(const Offsets& offsets, int index, int row) {
    return index / 2 * 2 * offsets.rows + 2 * row + index % 2;
}

void put16(uint8_t* to, uint16_t bits) { std::memcpy(to, &bits, 2); }

// Power-of-two exponents as bfloat16, halved because the codebook's values are doubled.
uint16_t mxfp4_factor(uint8_t e) { return static_cast<uint16_t>(e < 2 ? 0x20 << e : (e - 1) << 7); }

// Packs one row of one chunk with `blocks` blocks of 32 columns; the chunk must be zeroed.
void pack_row_chunk(const Offsets& offsets, FileType type, const uint8_t* source, int blocks, int row, uint8_t* chunk) {
    const BlockType& of = *block_type(type);
    const Format& format = offsets.format;
    const Planes planes(offsets, blocks);
    if (format.super) {
        const RawScales raw = super_scales(type, source);
        put16(chunk + 2 * row, raw.d);
        if (format.mins) put16(chunk + 2 * offsets.rows + 2 * row, raw.dmin);
        for (int g = 0; format.scales && g < 256 / format.group; g++) {
            chunk[offsets.scales() + pair_place(offsets, g, row)] = raw.scales[g];
            if (format.mins) chunk[offsets.mins() + pair_place(offsets, g, row)] = raw.mins[g];
        }
    }
    Block block;
    for (int first = 0; first < blocks; first += of.elements / 32, source += of.bytes) {
        of.decode(source, block);
        if (!format.super) {   // all but MXFP4 start with an f16 factor, followed by a min if they have one
            uint8_t* factor = chunk + first * offsets.factors() + 2 * row;
            put16(factor, type == FileType::mxfp4 ? mxfp4_factor(source[0]) : bits_at(source));
            if (format.mins) put16(factor + blocks * offsets.factors(), bits_at(source + 2));
        }
        for (int i = 0; i < of.elements; i++) {
            const int b = first + i / 32;
            put_number(offsets, chunk + planes.low(b), chunk + planes.high(b), i % 32, row,
                       stored_number(format, block.q[i]));
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
        if (format_of(layout).grid != Grid::none) {
            PointBlock points;
            read_points(type, from, points);
            pack_points(layout, group_rows, points, row, group + packed_bytes(layout, group_rows, k));
            continue;
        }
        pack_row_chunk(offsets_of(layout, group_rows), type, from, blocks, row,
                       group + packed_bytes(layout, group_rows, k));
    }
}

// Computes the factors that turn a row's values into integers, block by block: powers of two, [blocks][R].
void put_word_factors(const float* values, int64_t columns, int group_rows, int row, float* factors) {
    for (int64_t k = 0; k < columns; k += WordBlock::columns, factors += group_rows) {
        double squares = 0, largest = 0;
        for (int64_t i = k; i < std::min<int64_t>(columns, k + WordBlock::columns); i++) {
            const double value = values[i];
            squares += value * value;
            largest = std::isnan(value) ? value : std::max(largest, std::fabs(value));
        }
        const double most = std::max(std::sqrt(squares) / largest_word_norm, largest / largest_word);
        if (!std::isfinite(most)) factors[row] = std::nanf("");
        else if (most == 0) factors[row] = 1;
        else factors[row] = static_cast<float>(std::ldexp(1.0, std::clamp(-std::ilogb(most) - 1, -126, 126)));
    }
}

int64_t word_factor_bytes(int64_t columns, int group_rows) {
    return (columns + WordBlock::columns - 1) / WordBlock::columns * group_rows * static_cast<int64_t>(sizeof(float));
}

}  // namespace

int64_t packed_bytes(Layout layout, int group_rows, int64_t columns) {
    if (layout == Layout::f32) return columns * group_rows * 4;
    if (scaling_of(layout) == Scaling::none) return columns * group_rows * 2;
    if (format_of(layout).grid != Grid::none) return columns / 256 * point_offsets_of(layout, group_rows).chunk();
    const Offsets offsets = offsets_of(layout, group_rows);
    return offsets.format.super ? columns / 256 * offsets.super_block() : columns / 32 * offsets.block();
}

void unpack_chunk(Layout layout, int group_rows, const uint8_t* chunk, int64_t columns, int row, Block& block) {
    const Offsets offsets = offsets_of(layout, group_rows);
    const Format& format = offsets.format;
    if (format.grid != Grid::none) return unpack_points(layout, group_rows, chunk, row, block);
    const int blocks = static_cast<int>(columns / 32);
    const Planes planes(offsets, blocks);
    for (int i = 0; i < 32 * blocks; i++) {
        const uint8_t *low = chunk + planes.low(i / 32), *high = chunk + planes.high(i / 32);
        block.q[i] = static_cast<int8_t>(get_number(offsets, low, high, i % 32, row));
    }
    for (int g = 0; g < 2 * blocks; g++) {
        block.offset[g] = 0;
        if (format.super) {
            const int at = pair_place(offsets, 16 * g / format.group, row);
            const uint8_t scale = format.scales ? chunk[offsets.scales() + at] : 1;
            const int factor = format.signed_scales ? static_cast<int8_t>(scale) : scale;
            block.scale[g] = half_at(chunk + 2 * row) * static_cast<float>(factor);
            if (format.mins) {
                const float dmin = half_at(chunk + 2 * offsets.rows + 2 * row);
                block.offset[g] = -(dmin * static_cast<float>(chunk[offsets.mins() + at]));
            }
        } else {
            const uint8_t* factor = chunk + g / 2 * offsets.factors() + 2 * row;
            block.scale[g] = layout == Layout::mxfp4 ? bfloat_to_float(bits_at(factor)) : half_at(factor);
            if (format.mins) block.offset[g] = half_at(factor + blocks * offsets.factors());
        }
    }
}

PackedMatrix::PackedMatrix(const uint8_t* data, size_t bytes, FileType type, int64_t rows, int64_t columns)
    : kernels_(&matrix_kernels()), layout_(layout_of(type)), rows_(rows), columns_(columns) {
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
    const bool words = kernels_->words && !kernels_->split && (layout_ == Layout::f16 || layout_ == Layout::bf16);
    const int64_t numbers = packed_bytes(layout_, R, columns);
    stride_ = (numbers + (words ? word_factor_bytes(columns, R) : 0) + 63) / 64 * 64;
    data_.allocate(this->bytes());
    uint8_t* packed = data_.get();
    parallel_for(groups_, [&](int64_t g, int) {
        uint8_t* group = packed + g * stride_;
        std::memset(group, 0, static_cast<size_t>(stride_));
        for (int r = 0; r < R && g * R + r < rows; r++) {
            pack_row(layout_, type, data + (g * R + r) * row_bytes, columns, R, r, group);
            if (!words) continue;
            std::vector<float> values(static_cast<size_t>(columns));
            unpack_row(g * R + r, values.data());
            put_word_factors(values.data(), columns, R, r, reinterpret_cast<float*>(group + numbers));
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
            else values[k] = bfloat_to_float(reinterpret_cast<const uint16_t*>(source)[at]);
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
