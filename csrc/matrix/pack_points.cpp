#include "matrix/pack_points.h"

#include <cstring>

#include "vector/half.h"

namespace puna {
namespace {

// The begin of the section of point or column `i`, with `each` in a section.
template <class Byte>
Byte* section_of(const PointOffsets& offsets, Byte* chunk, int i, int each) {
    return chunk + offsets.sections() + i / each * offsets.section();
}

// The byte that holds the sign of a column, and its bit.
template <class Byte>
Byte* sign_byte(const PointOffsets& offsets, Byte* chunk, int column, int row) {
    return section_of(offsets, chunk, column, 64) + offsets.signs() + column % 64 / 32 * 4 * offsets.rows + 4 * row +
           column % 4;
}
int sign_bit(int column) { return column % 32 / 4; }

}  // namespace

void pack_points(Layout layout, int group_rows, const PointBlock& points, int row, uint8_t* chunk) {
    const PointOffsets offsets = point_offsets_of(layout, group_rows);
    const int per_section = offsets.points(), bits = offsets.high_bits();
    std::memcpy(chunk + 2 * row, &points.d, 2);
    for (int g = 0; g < 256 / offsets.format.group; g++) {
        chunk[offsets.scales() + g / 2 * group_rows + row] |= static_cast<uint8_t>(points.scales[g] << 4 * (g % 2));
    }
    for (int p = 0; p < 4 * per_section; p++) {
        uint8_t* section = section_of(offsets, chunk, p, per_section);
        const int i = p % per_section;
        section[i * group_rows + row] = static_cast<uint8_t>(points.index[p]);
        if (bits == 0) continue;
        uint8_t* word = section + offsets.high() + row * offsets.word();
        word[i * bits / 8] |= static_cast<uint8_t>(points.index[p] >> 8 << i * bits % 8);
    }
    for (int c = 0; offsets.shape().signs && c < 256; c++) {
        const int negative = points.signs[c / 8] >> c % 8 & 1;
        *sign_byte(offsets, chunk, c, row) |= static_cast<uint8_t>(negative << sign_bit(c));
    }
}

void unpack_points(Layout layout, int group_rows, const uint8_t* chunk, int row, Block& block) {
    const PointOffsets offsets = point_offsets_of(layout, group_rows);
    const int per_section = offsets.points(), bits = offsets.high_bits(), group = offsets.format.group;
    PointBlock points{};
    points.d = bits_at(chunk + 2 * row);
    for (int g = 0; g < 256 / group; g++) {
        points.scales[g] = chunk[offsets.scales() + g / 2 * group_rows + row] >> 4 * (g % 2) & 15;
    }
    for (int p = 0; p < 4 * per_section; p++) {
        const uint8_t* section = section_of(offsets, chunk, p, per_section);
        const int i = p % per_section;
        points.index[p] = section[i * group_rows + row];
        if (bits == 0) continue;
        const uint8_t* word = section + offsets.high() + row * offsets.word();
        points.index[p] |= static_cast<uint16_t>((word[i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1)) << 8);
    }
    for (int c = 0; offsets.shape().signs && c < 256; c++) {
        const int negative = *sign_byte(offsets, chunk, c, row) >> sign_bit(c) & 1;
        points.signs[c / 8] |= static_cast<uint8_t>(negative << c % 8);
    }
    decode_points(offsets.format.grid, group, points, block);
}

}  // namespace puna
