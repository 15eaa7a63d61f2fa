// The sequences of a call. Not for kernels, which use nothing from the standard library.
#pragma once
#include <vector>

#include "recurrent/recurrent.h"

namespace puna {

// The first row of each sequence, and the number of rows.
std::vector<int64_t> sequence_bounds(const StateRows& rows);

}  // namespace puna
