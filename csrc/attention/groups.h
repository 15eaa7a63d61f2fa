// Groups of a cache's cells, pooled to one entry each, and the lists by which attention reads entries beside other
// cells.
#pragma once
#include <cstdint>

#include "attention/attention.h"

namespace puna {

struct GroupCall {
    const float* stored;     // [capacity, 2 * width]: a cell's values, then its gates
    const float* bias;       // [group_size, width], added to the gates
    const int32_t* cells;
    const int32_t* starts;   // [rows]
    const int32_t* counts;   // [rows]
    int rows, group_size, width;
    bool overlapping;        // the last `group_size` cells give the second halves of values and gates, others the first
    float* entries;          // [rows, dim()]

    int dim() const { return overlapping ? width / 2 : width; }
    bool completes(int row) const {
        return counts[row] == group_size || (overlapping && counts[row] == 2 * group_size);
    }
};

// Computes the sum over each row's cells of softmax(gates) * values, column by column, and zeros for rows that complete
// no group. The call must be valid: every listed cell exists.
void pool_groups(const GroupCall& call);

// Lists of cells: row r has cells[starts[r]] to cells[starts[r] + counts[r] - 1].
struct CellLists {
    const int32_t* cells;
    const int32_t* starts;   // [rows]
    const int32_t* counts;   // [rows]
    int rows;
};

// Writes each row's cells of `first` and then of `second` to `joined` [rows, list_width(most)], and where they begin
// and how many they are: begins and lengths [rows]. Together they must be at most `most`.
void join_lists(const CellLists& first, const CellLists& second, int64_t most, int32_t* joined, int32_t* begins,
                int32_t* lengths);

}  // namespace puna
