// Points of the IQ1, IQ2 and IQ3 types in packed groups.
#pragma once
#include "weights/layout.h"

namespace puna {

// Writes one row of a chunk of a group. The chunk was zeroed.
void pack_points(Layout layout, int group_rows, const PointBlock& points, int row, uint8_t* chunk);

// One row of a chunk, in the common form.
void unpack_points(Layout layout, int group_rows, const uint8_t* chunk, int row, Block& block);

}  // namespace puna
