// Lookup tables for the 4-bit numbers of some types.
//
// Everything is in an unnamed namespace: translation units for different instruction sets must not share it.
#pragma once
#include <cstdint>

namespace puna {

enum class Codebook { none, iq4_nl, mxfp4 };

namespace {

constexpr int8_t iq4_nl_entries[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t mxfp4_entries[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};   // doubled

// The entries of a codebook, which must not be none.
constexpr const int8_t* entries_of(Codebook codebook) {
    return codebook == Codebook::iq4_nl ? iq4_nl_entries : mxfp4_entries;
}

}  // namespace
}  // namespace puna
