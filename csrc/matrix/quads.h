// Extraction of one quad's numbers (4 columns of R rows) from their bit planes, for any instruction set.
//
// `Lanes` stands for an instruction set: see quantized_product.h.
#pragma once
#include "vector/inline.h"
#include "weights/layout.h"

namespace puna {
namespace {

// A codebook as the bytes that products read, which are too large by `excess`.
struct Table {
    uint8_t entries[16];
};

constexpr Table table_of(Codebook codebook, int excess) {
    Table table{};
    for (int i = 0; i < 16; i++) table.entries[i] = static_cast<uint8_t>(entries_of(codebook)[i] + excess);
    return table;
}

template <Codebook codebook, int excess>
constexpr Table table = table_of(codebook, excess);

// Whether products read the numbers with 128 added, because they only accept unsigned ones.
template <class Lanes, Layout layout>
constexpr bool flipped = format_of(layout).is_signed && !Lanes::signed_bytes;

// The amount by which the numbers that products read are too large.
template <class Lanes, Layout layout>
constexpr int excess = flipped<Lanes, layout> ? 128 : format_of(layout).excess;

constexpr int log2_of(int power) { return power <= 1 ? 0 : 1 + log2_of(power / 2); }

// Quad i of a block of 32 columns whose planes start at `low` and `high`.
template <class Lanes, Layout layout, int i>
PUNA_INLINE typename Lanes::Bytes quad(const uint8_t* low, const uint8_t* high) {
    constexpr Format f = format_of(layout);
    constexpr int vector = 4 * Lanes::rows, per_vector = 8 / f.low_bits, bit = f.low_bits * (i % per_vector);
    typename Lanes::Bytes numbers = Lanes::load(low + i / per_vector * vector);
    if constexpr (f.low_bits < 8) {
        numbers = Lanes::template bit_and<(1 << f.low_bits) - 1>(Lanes::template shift_left<-bit>(numbers));
    }
    if constexpr (f.high_bits == 1) {
        const auto bits = Lanes::template shift_left<f.low_bits - i>(Lanes::load(high));
        numbers = Lanes::bit_or(numbers, Lanes::template bit_and<1 << f.low_bits>(bits));
    } else if constexpr (f.high_bits == 2) {
        const auto bits = Lanes::template shift_left<f.low_bits - 2 * (i % 4)>(Lanes::load(high + i / 4 * vector));
        numbers = Lanes::bit_or(numbers, Lanes::template bit_and<3 << f.low_bits>(bits));
    }
    if constexpr (f.codebook != Codebook::none) {
        return Lanes::lookup(numbers, table<f.codebook, excess<Lanes, layout>>.entries);
    } else if constexpr (flipped<Lanes, layout>) {
        return Lanes::flip_top_bits(numbers);
    } else {
        return numbers;
    }
}

}  // namespace
}  // namespace puna
