// The kernel of the selective scan, compiled once per instruction set.
#include "recurrent/lanes.h"
#include "recurrent/selective_scan.h"

namespace puna {
namespace {

// The state of one vector of channels stays in the nearest cache from the first row to the last.
template <class Lanes>
void scan(const SelectiveScan& call, int64_t channel, int64_t begin, int64_t end, float* room, Lanes lanes) {
    const int64_t channels = call.channels, entries = call.state_dim;
    const auto state = [&](int64_t slot) { return call.states + slot * entries * channels + channel; };
    const float* before = state(call.rows.sources[begin]);
    for (int64_t i = 0; i < entries; i++) lanes.load(before + i * channels).store(room + i * Vec::width);
    const float* rates = call.rates + channel;
    const Vec skip = lanes.load(call.skips + channel);
    for (int64_t row = begin; row < end; row++) {
        const int64_t at = row * channels + channel;
        const Vec x = lanes.load(call.x + at), step = lanes.load(call.steps + at), taken = step * x;
        const float *key = call.keys + row * entries, *query = call.queries + row * entries;
        Vec y = skip * x;
        for (int64_t i = 0; i < entries; i++) {
            const Vec decayed = exp(step * lanes.load(rates + i * channels)) * Vec::load(room + i * Vec::width);
            const Vec entry = fma(Vec::splat(key[i]), taken, decayed);
            entry.store(room + i * Vec::width);
            y = fma(Vec::splat(query[i]), entry, y);
        }
        lanes.store(y, call.y + at);
        if (call.rows.targets[row] < 0) continue;
        float* after = state(call.rows.targets[row]);
        for (int64_t i = 0; i < entries; i++) lanes.store(Vec::load(room + i * Vec::width), after + i * channels);
    }
}

void selective_scan_piece(const SelectiveScan& call, int64_t channel, int64_t begin, int64_t end, float* room) {
    const int64_t left = call.channels - channel;
    if (left >= Vec::width) {
        scan(call, channel, begin, end, room, AllLanes{});
    } else {
        scan(call, channel, begin, end, room, FirstLanes{int(left)});
    }
}

}  // namespace

const ScanKernels PUNA_SET::scan_kernels = {selective_scan_piece, Vec::width};

}  // namespace puna
