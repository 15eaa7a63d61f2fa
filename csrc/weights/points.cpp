#include "weights/points.h"

#include <cstring>

#include "vector/half.h"

namespace puna {
namespace {

#define GRID(name, ...) constexpr uint64_t chosen_##name[] = {__VA_ARGS__};
#include "../../src/puna/gguf/blocks/grids.inc"
#undef GRID

struct Points : PointTable {
    uint8_t digits[max_points][8];

    Points(Grid grid, const uint64_t* chosen, size_t words) : PointTable{}, digits{} {
        const GridShape shape = shape_of(grid);
        const int base = shape.coordinates == 4 ? 8 : 3;
        int index = 0;
        for (size_t n = 0; n < 64 * words; n++) {
            if (!(chosen[n / 64] >> n % 64 & 1)) continue;
            size_t rest = n;
            for (int c = 0; c < shape.coordinates; c++, rest /= static_cast<size_t>(base)) {
                const auto digit = static_cast<uint8_t>(rest % static_cast<size_t>(base));
                digits[index][c] = digit;
                nibbles[index] |= static_cast<uint32_t>(digit) << (8 * (c % 4) + 4 * (c / 4));
                const int place = 8 * (c % 2) + (base == 8 ? 4 * (c / 2) : 2 * (c / 2));
                pairs[index] = static_cast<uint16_t>(pairs[index] | digit << place);
            }
            index++;
        }
    }
};

template <size_t words>
Points points(Grid grid, const uint64_t (&chosen)[words]) {
    return Points(grid, chosen, words);
}

const Points& points_of(Grid grid) {
    static const Points iq2_xxs = points(Grid::iq2_xxs, chosen_IQ2_XXS), iq2_xs = points(Grid::iq2_xs, chosen_IQ2_XS);
    static const Points iq2_s = points(Grid::iq2_s, chosen_IQ2_S), iq1 = points(Grid::iq1, chosen_IQ1);
    static const Points iq3_xxs = points(Grid::iq3_xxs, chosen_IQ3_XXS), iq3_s = points(Grid::iq3_s, chosen_IQ3_S);
    switch (grid) {
        case Grid::iq2_xxs: return iq2_xxs;
        case Grid::iq2_xs: return iq2_xs;
        case Grid::iq2_s: return iq2_s;
        case Grid::iq3_xxs: return iq3_xxs;
        case Grid::iq3_s: return iq3_s;
        case Grid::iq1: case Grid::none: break;
    }
    return iq1;
}

uint32_t u32(const uint8_t* p) { return bits_at(p) | static_cast<uint32_t>(bits_at(p + 2)) << 16; }

// Eight signs from the seven that are stored: the number of negative ones is even.
uint8_t eight_signs(uint32_t seven) { return static_cast<uint8_t>(seven | (__builtin_popcount(seven) & 1) << 7); }

// Reads words with the signs of four times 8 columns and the scale of all 32.
void read_sign_words(const uint8_t* words, int step, PointBlock& to) {
    for (int b = 0; b < 8; b++) {
        const uint32_t word = u32(words + step * b);
        for (int i = 0; i < 4; i++) to.signs[4 * b + i] = eight_signs(word >> 7 * i & 127);
        to.scales[b] = static_cast<uint8_t>(word >> 28);
    }
}

void read_nibbles(const uint8_t* from, int count, uint8_t* to) {
    for (int i = 0; i < count; i++) to[i] = from[i / 2] >> 4 * (i % 2) & 15;
}

// Reads indices whose bits above the eighth, `bits` each, are in a separate stream.
void read_indices(const uint8_t* low, const uint8_t* high, int bits, int count, uint16_t* to) {
    for (int i = 0; i < count; i++) {
        const int above = bits == 0 ? 0 : high[i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1);
        to[i] = static_cast<uint16_t>(low[i] | above << 8);
    }
}

void read_iq2_xxs(const uint8_t* p, PointBlock& to) {
    to.d = bits_at(p);
    for (int b = 0; b < 8; b++) read_indices(p + 2 + 8 * b, nullptr, 0, 4, to.index + 4 * b);
    read_sign_words(p + 6, 8, to);
}

void read_iq2_xs(const uint8_t* p, PointBlock& to) {
    to.d = bits_at(p);
    for (int i = 0; i < 32; i++) {
        const uint16_t word = bits_at(p + 2 + 2 * i);
        to.index[i] = word & 511;
        to.signs[i] = eight_signs(word >> 9);
    }
    read_nibbles(p + 66, 16, to.scales);
}

void read_iq2_s(const uint8_t* p, PointBlock& to) {
    to.d = bits_at(p);
    read_indices(p + 2, p + 66, 2, 32, to.index);
    std::memcpy(to.signs, p + 34, 32);
    read_nibbles(p + 74, 16, to.scales);
}

void read_iq3_xxs(const uint8_t* p, PointBlock& to) {
    to.d = bits_at(p);
    read_indices(p + 2, nullptr, 0, 64, to.index);
    read_sign_words(p + 66, 4, to);
}

void read_iq3_s(const uint8_t* p, PointBlock& to) {
    to.d = bits_at(p);
    read_indices(p + 2, p + 66, 1, 64, to.index);
    std::memcpy(to.signs, p + 74, 32);
    read_nibbles(p + 106, 8, to.scales);
}

void read_iq1_s(const uint8_t* p, PointBlock& to) {
    to.d = bits_at(p);
    for (int b = 0; b < 8; b++) {   // four times 3 bits of an index, 3 of the scale, the shift of all 32 columns
        const int word = bits_at(p + 34 + 2 * b);
        for (int i = 0; i < 4; i++) {
            to.index[4 * b + i] = static_cast<uint16_t>(p[2 + 4 * b + i] | (word >> 3 * i & 7) << 8 | word >> 15 << 11);
        }
        to.scales[b] = word >> 12 & 7;
    }
}

void read_iq1_m(const uint8_t* p, PointBlock& to) {
    read_indices(p, p + 32, 4, 32, to.index);
    unsigned d = 0;
    for (int i = 0; i < 4; i++) {   // four scales of 3 bits, and 4 bits of the factor
        const int word = bits_at(p + 48 + 2 * i);
        for (int j = 0; j < 4; j++) to.scales[4 * i + j] = word >> 3 * j & 7;
        d |= static_cast<unsigned>(word >> 12) << 4 * i;
    }
    to.d = static_cast<uint16_t>(d);
}

struct PointType {
    Grid grid;
    int group;   // columns that share a scale
    void (*read)(const uint8_t* bytes, PointBlock& points);
};

constexpr PointType point_type(FileType type) {
    switch (type) {
        case FileType::iq2_xxs: return {Grid::iq2_xxs, 32, read_iq2_xxs};
        case FileType::iq2_xs: return {Grid::iq2_xs, 16, read_iq2_xs};
        case FileType::iq2_s: return {Grid::iq2_s, 16, read_iq2_s};
        case FileType::iq3_xxs: return {Grid::iq3_xxs, 32, read_iq3_xxs};
        case FileType::iq3_s: return {Grid::iq3_s, 32, read_iq3_s};
        case FileType::iq1_s: return {Grid::iq1, 32, read_iq1_s};
        case FileType::iq1_m: return {Grid::iq1, 16, read_iq1_m};
        default: return {Grid::none, 32, nullptr};
    }
}

}  // namespace

const PointTable& point_table(Grid grid) { return points_of(grid); }

void read_points(FileType type, const uint8_t* bytes, PointBlock& points) { point_type(type).read(bytes, points); }

void decode_points(Grid grid, int group, const PointBlock& points, Block& block) {
    const GridShape shape = shape_of(grid);
    const Points& table = points_of(grid);
    for (int c = 0; c < 256; c++) {
        const int index = points.index[c / shape.coordinates];
        const int digit = table.digits[index % max_points][c % shape.coordinates];
        const int low = shape.signs ? points.signs[c / 8] >> c % 8 & 1 : index / max_points;
        block.q[c] = digit_number(grid, digit, low != 0);
    }
    const float d = half_to_float(points.d) * shape.unit;
    for (int g = 0; g < 16; g++) {
        block.scale[g] = d * static_cast<float>(2 * points.scales[16 * g / group] + 1);
        block.offset[g] = 0;
    }
}

template <FileType type>
void decode_points(const uint8_t* bytes, Block& block) {
    constexpr PointType of = point_type(type);
    PointBlock points;
    of.read(bytes, points);
    decode_points(of.grid, of.group, points, block);
}
template void decode_points<FileType::iq2_xxs>(const uint8_t*, Block&);
template void decode_points<FileType::iq2_xs>(const uint8_t*, Block&);
template void decode_points<FileType::iq2_s>(const uint8_t*, Block&);
template void decode_points<FileType::iq3_xxs>(const uint8_t*, Block&);
template void decode_points<FileType::iq3_s>(const uint8_t*, Block&);
template void decode_points<FileType::iq1_s>(const uint8_t*, Block&);
template void decode_points<FileType::iq1_m>(const uint8_t*, Block&);

}  // namespace puna
