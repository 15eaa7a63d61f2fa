#include "recurrent/selective_scan.h"

#include <vector>

#include "core/pool.h"
#include "recurrent/sequences.h"

namespace puna {
namespace {

// Entries of states that are worth handing to another thread; each takes an exponential.
constexpr int64_t entries_per_task = 4096;

}  // namespace

PUNA_DEFINE_CHOICE(ScanKernels, scan_kernels)

void selective_scan(const SelectiveScan& call) {
    const ScanKernels& kernels = scan_kernels();
    const int64_t pieces = (call.channels + kernels.columns - 1) / kernels.columns;
    const std::vector<int64_t> bounds = sequence_bounds(call.rows);
    const int64_t sequences = static_cast<int64_t>(bounds.size()) - 1;
    const int64_t rows_each = sequences ? call.rows.rows / sequences : 1;
    const int64_t cost = rows_each * call.state_dim * kernels.columns;
    parallel_ranges(sequences * pieces, entries_per_task / (cost + 1) + 1, [&](int64_t begin, int64_t end, int) {
        thread_local std::vector<float> room;
        room.resize(call.state_dim * kernels.columns);
        for (int64_t task = begin; task < end; task++) {
            const int64_t sequence = task / pieces, channel = task % pieces * kernels.columns;
            kernels.selective_scan(call, channel, bounds[sequence], bounds[sequence + 1], room.data());
        }
    });
}

}  // namespace puna
