#include "attention/groups.h"

#include <algorithm>
#include <cmath>

#include "core/pool.h"

namespace puna {
namespace {

// Columns that one thread pools at once.
constexpr int piece = 64;
// Rows whose lists one thread joins.
constexpr int rows_per_task = 16;

// Pools `columns` columns of a row's group, beginning at column `begin`.
void pool_columns(const GroupCall& call, int row, int begin, int columns) {
    const int count = call.counts[row];
    const int32_t* seen = call.cells + call.starts[row];
    float* sums = call.entries + int64_t(row) * call.dim() + begin;
    const auto first = [&](int i) {
        return begin + (call.overlapping && i >= count - call.group_size ? call.dim() : 0);
    };
    const auto values = [&](int i) { return call.stored + int64_t(seen[i]) * 2 * call.width + first(i); };
    const auto added = [&](int i) { return call.bias + int64_t(i % call.group_size) * call.width + first(i); };

    float most[piece] = {}, totals[piece] = {};
    for (int i = 0; i < count; i++) {
        const float *gates = values(i) + call.width, *more = added(i);
        for (int c = 0; c < columns; c++) {
            const float gate = gates[c] + more[c];
            most[c] = i == 0 || gate > most[c] ? gate : most[c];
        }
    }
    std::fill_n(sums, columns, 0.0f);
    for (int i = 0; i < count; i++) {
        const float *numbers = values(i), *gates = numbers + call.width, *more = added(i);
        for (int c = 0; c < columns; c++) {
            const float share = std::exp(gates[c] + more[c] - most[c]);
            totals[c] += share;
            sums[c] += share * numbers[c];
        }
    }
    for (int c = 0; c < columns; c++) sums[c] /= totals[c];
}

}  // namespace

void pool_groups(const GroupCall& call) {
    const int dim = call.dim(), pieces = (dim + piece - 1) / piece;
    parallel_for(int64_t(call.rows) * pieces, [&](int64_t index, int) {
        const int row = static_cast<int>(index / pieces), begin = static_cast<int>(index % pieces) * piece;
        const int columns = std::min(piece, dim - begin);
        if (call.completes(row)) {
            pool_columns(call, row, begin, columns);
        } else {
            std::fill_n(call.entries + int64_t(row) * dim + begin, columns, 0.0f);
        }
    });
}

void join_lists(const CellLists& first, const CellLists& second, int64_t most, int32_t* joined, int32_t* begins,
                int32_t* lengths) {
    const int64_t width = list_width(most);
    parallel_ranges(first.rows, rows_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            int32_t* to = std::copy_n(first.cells + first.starts[row], first.counts[row], joined + row * width);
            std::copy_n(second.cells + second.starts[row], second.counts[row], to);
            begins[row] = static_cast<int32_t>(row * width);
            lengths[row] = first.counts[row] + second.counts[row];
        }
    });
}

}  // namespace puna
