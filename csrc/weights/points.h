// The IQ1, IQ2 and IQ3 types: columns as points of a grid.
//
// A super-block of 256 columns is a sequence of points with 8 or 4 coordinates each, whose indices the file stores; IQ2
// and IQ3 have a sign for each coordinate, IQ1 shifts a point by 1/8 up or down. A coordinate is one of up to 8
// numbers, selected by its digit.
//
// The contents of the unnamed namespace must not be shared by translation units for different instruction sets.
#pragma once
#include <cstdint>

#include "weights/blocks.h"

namespace puna {

enum class Grid { none, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq1 };

constexpr int max_points = 2048;   // of a grid

// The points of a grid by index, in the form that kernels extract digits from.
struct PointTable {
    // Four bits for each coordinate: the first four are the lower halves of bytes 0 to 3.
    alignas(64) uint32_t nibbles[max_points];
    // Shifted right by 0 and 2 (with 4 coordinates: by 0 and 4) these have the first two and the next two coordinates
    // in the lower bits of bytes 0 and 1; by 4 and 6 those after them.
    alignas(64) uint16_t pairs[max_points];
};
const PointTable& point_table(Grid grid);

// A super-block of the file with its fields taken apart:
//   value[c] = unit * d * (2 * scales[c / group] + 1) * number of c
struct PointBlock {
    uint16_t d;           // float16
    uint16_t index[64];   // of 32 or 64 points; IQ1's twelfth bit marks a downward shift
    uint8_t signs[32];    // bit c % 8 of byte c / 8: whether column c is negative
    uint8_t scales[16];   // of groups of 32 or 16 columns
};

// Splits a block of one of these types into its fields.
void read_points(FileType type, const uint8_t* bytes, PointBlock& points);

// Converts the fields to the common form. `group` columns share a scale.
void decode_points(Grid grid, int group, const PointBlock& points, Block& block);

// Converts a block of one of these types to the common form.
template <FileType type>
void decode_points(const uint8_t* bytes, Block& block);

namespace {

struct GridShape {
    int coordinates;   // of a point
    int index_bits;    // for IQ1, including the shift
    int digit_bits;
    bool signs;
    float unit;
    int excess;        // a power of two larger than any number
};

constexpr GridShape shape_of(Grid grid) {
    switch (grid) {
        case Grid::iq2_xxs: return {8, 8, 2, true, 0.125f, 64};
        case Grid::iq2_xs: return {8, 9, 2, true, 0.125f, 64};
        case Grid::iq2_s: return {8, 10, 2, true, 0.125f, 64};
        case Grid::iq3_xxs: return {4, 8, 3, true, 0.25f, 64};
        case Grid::iq3_s: return {4, 9, 3, true, 1, 16};
        case Grid::iq1: return {8, 12, 2, false, 0.125f, 16};   // numbers are eighths
        case Grid::none: break;
    }
    return {1, 0, 0, false, 1, 0};
}

// The number that a digit stands for; `low` if it is negative, or shifted down.
constexpr int8_t digit_number(Grid grid, int digit, bool low) {
    constexpr int8_t iq2[] = {8, 25, 43}, iq3_xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};
    if (grid == Grid::iq1) return static_cast<int8_t>(8 * (digit - 1) + (low ? -1 : 1));
    const int size = grid == Grid::iq3_s ? 2 * digit + 1 : grid == Grid::iq3_xxs ? iq3_xxs[digit] : iq2[digit % 3];
    return static_cast<int8_t>(low ? -size : size);
}

}  // namespace
}  // namespace puna
