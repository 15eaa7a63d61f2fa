// Points of the IQ1, IQ2 and IQ3 types in packed groups.
#pragma once
#include "weights/layout.h"

namespace puna {

// Writes one row of a chunk of a group. The chunk must be zeroed.
void pack_points(Layout layout, int group_rows, const PointBlock& points, int row, uint8_t* chunk);

// Unpacks one row of a chunk into the common form.
void unpack_points(Layout layout, int group_rows, const uint8_t* chunk, int row, Block& block);

}  // namespace puna
