#include "recurrent/recurrent.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/pool.h"
#include "recurrent/sequences.h"

namespace puna {
namespace {

// A layer's inputs kept for its convolution, of so many floats, times all layers, will have left the caches before they
// are read again.
constexpr int64_t inputs_past_caches = 1 << 16;

}  // namespace

PUNA_DEFINE_CHOICE(RecurrentKernels, recurrent_kernels)

std::vector<int64_t> sequence_bounds(const StateRows& rows) {
    std::vector<int64_t> bounds;
    for (int64_t row = 0; row < rows.rows; row++) {
        if (rows.starts[row] == row) bounds.push_back(row);
    }
    bounds.push_back(rows.rows);
    return bounds;
}

void short_conv(const ShortConv& call) {
    const RecurrentKernels& kernels = recurrent_kernels();
    const int64_t width = call.channels, kept = call.taps - 1, stride = call.gated ? 3 * width : width;
    const StateRows& rows = call.rows;
    const int64_t stored = rows.rows - std::count(rows.targets, rows.targets + rows.rows, -1);
    const bool nontemporal = stored * kept * width >= inputs_past_caches;
    // A few tasks for each thread; longer ones repeat fewer inputs of the rows before them.
    const int64_t grain = std::min(floats_per_task / (width + 1) + 1, rows.rows / (4 * thread_count()) + 1);
    parallel_ranges(rows.rows, grain, [&](int64_t begin, int64_t end, int) {
        thread_local std::vector<float> ring;   // inputs of the last `taps` rows, row r at r % taps
        thread_local std::vector<const float*> past;
        ring.resize(call.taps * width);
        past.resize(kept);
        const auto ring_row = [&](int64_t row) { return ring.data() + row % call.taps * width; };
        for (int64_t row = std::max<int64_t>(rows.starts[begin], begin - kept); row < begin; row++) {
            const float *b = call.projected + row * stride, *x = call.gated ? b + 2 * width : b;
            float* newest = ring_row(row);
            for (int64_t i = 0; i < width; i++) newest[i] = call.gated ? b[i] * x[i] : x[i];
        }
        for (int64_t row = begin; row < end; row++) {
            const int64_t start = rows.starts[row];
            const float* before = call.states + rows.sources[row] * kept * width;
            const auto convolved = [&](int64_t other) {
                return other < start ? before + (other - start + kept) * width : ring_row(other);
            };
            for (int64_t k = 0; k < kept; k++) past[k] = convolved(row - kept + k);
            const float* first = call.projected + row * stride;
            const float *b = call.gated ? first : nullptr, *c = call.gated ? first + width : nullptr;
            const int64_t target = rows.targets[row];
            float* after = target < 0 ? nullptr : call.states + target * kept * width;
            kernels.short_conv(b, c, call.gated ? first + 2 * width : first, past.data(), call.weights, call.bias,
                               call.taps, width, call.activated, nontemporal, ring_row(row), after,
                               call.y + row * width);
        }
    });
}

void pool_recent(const PoolRecent& call) {
    const RecurrentKernels& kernels = recurrent_kernels();
    const int64_t width = call.channels, kept = call.taps - 1, size = kept * 2 * width;
    const StateRows& rows = call.rows;
    parallel_ranges(rows.rows, floats_per_task / (call.taps * width + 1) + 1, [&](int64_t begin, int64_t end, int) {
        thread_local std::vector<const float*> values, gates;   // of the last `taps` rows
        values.resize(call.taps), gates.resize(call.taps);
        for (int64_t row = begin; row < end; row++) {
            const int64_t start = rows.starts[row];
            const float* before = call.states + rows.sources[row] * size;
            for (int64_t k = 0; k < call.taps; k++) {
                const int64_t other = row - kept + k;
                const float* stored = before + (other - start + kept) * 2 * width;
                values[k] = other < start ? stored : call.values + other * width;
                gates[k] = other < start ? stored + width : call.gates + other * width;
            }
            kernels.pool(values.data(), gates.data(), call.bias, call.taps, width, call.y + row * width);
            if (rows.targets[row] < 0) continue;
            float* after = call.states + rows.targets[row] * size;
            for (int64_t k = 1; k < call.taps; k++, after += 2 * width) {
                std::memcpy(after, values[k], width * sizeof(float));
                std::memcpy(after + width, gates[k], width * sizeof(float));
            }
        }
    });
}

}  // namespace puna
