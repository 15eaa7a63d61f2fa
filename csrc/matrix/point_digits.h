// Lookup of the digits of points (weights/points.h), for any instruction set with gathers.
#pragma once
#include "vector/inline.h"
#include "weights/points.h"

namespace puna {
namespace {

// The digits of the points that one index of each row selects: one or two quads of columns.
template <class Lanes, Grid grid>
PUNA_INLINE void look_up_point(const PointTable& table, typename Lanes::Ints indices, typename Lanes::Bytes* quads) {
    const auto found = Lanes::as_bytes(Lanes::gather(table.nibbles, indices));
    if constexpr (shape_of(grid).coordinates == 4) {
        quads[0] = found;
    } else {
        quads[0] = Lanes::template bit_and<15>(found);
        quads[1] = Lanes::template bit_and<15>(Lanes::template shift_left<-4>(found));
    }
}

}  // namespace
}  // namespace puna
