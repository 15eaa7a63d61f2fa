// How calls are divided. Not for kernels, which use nothing from the standard library.
#pragma once
#include <vector>

#include "recurrent/recurrent.h"

namespace puna {

// Floats that are worth handing to another thread.
constexpr int64_t floats_per_task = 16384;

// The first row of each sequence, and the number of rows.
std::vector<int64_t> sequence_bounds(const StateRows& rows);

}  // namespace puna
