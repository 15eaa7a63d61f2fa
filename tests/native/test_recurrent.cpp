// Short convolutions and pools, whole and cut into calls, against sums in double precision.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "recurrent/recurrent.h"

namespace puna::test {
namespace {

std::string of_width(const char* what, int64_t width) { return what + (" of width " + std::to_string(width)); }

// Numbers that begin at a cache line, as in a cache.
struct Aligned {
    std::vector<float> room;
    float* numbers;

    // Inlined, GCC 12 takes an empty vector for one of negative size.
    [[gnu::noinline]] explicit Aligned(const std::vector<float>& from) : room(from.size() + 16) {
        numbers = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64 / sizeof(float);
        std::copy(from.begin(), from.end(), numbers);
    }
};

// Two sequences, of `rows` rows and of one; then the first again, in two calls that must give the same bits.
void test_short_conv(int64_t taps, int64_t width) {
    Random random(static_cast<uint64_t>(taps * 100 + width));
    const int64_t kept = taps - 1, rows = 9, all = rows + 1, cut = 4;
    const std::vector<float> projected = random.normals(all * 3 * width), weights = random.normals(taps * width),
                             bias = random.normals(width), before = random.normals(5 * kept * width);
    std::vector<int32_t> starts(rows, 0), sources(rows, 3), targets(rows, -1);
    starts.push_back(rows), sources.push_back(0), targets.push_back(4);
    targets[rows - 1] = 1;
    const Aligned states(before), cut_states(before);
    std::vector<float> y(static_cast<size_t>(all * width)), cut_y(y.size());
    const StateRows state_rows = {starts.data(), sources.data(), targets.data(), all};
    ShortConv call = {state_rows,  projected.data(), weights.data(), bias.data(),
                      states.numbers, y.data(),        width,          taps,        true,          false};
    short_conv(call);
    bool near = true, left = true;
    for (int64_t row = 0; row < all; row++) {
        const int64_t start = row < rows ? 0 : rows, source = row < rows ? 3 : 0;
        for (int64_t i = 0; i < width; i++) {
            const auto product = [&](int64_t other) {
                const int64_t kept_row = source * kept + other - start + kept;
                if (other < start) return before[static_cast<size_t>(kept_row * width + i)];
                const float* b = projected.data() + other * 3 * width;
                return b[i] * b[2 * width + i];
            };
            double sum = bias[static_cast<size_t>(i)], size = std::fabs(sum);
            for (int64_t k = 0; k < taps; k++) {
                const double term = double{product(row - kept + k)} * weights[static_cast<size_t>(k * width + i)];
                sum += term, size += std::fabs(term);
            }
            const double gate = projected[static_cast<size_t>((row * 3 + 1) * width + i)];
            const double error = std::fabs(y[static_cast<size_t>(row * width + i)] - gate * sum);
            near = near && error <= std::fabs(gate) * size * static_cast<double>(taps + 4) * 0x1p-24;
            for (int64_t k = 0; k < kept && targets[static_cast<size_t>(row)] >= 0; k++) {
                const int64_t slot = targets[static_cast<size_t>(row)];
                const float state = states.numbers[(slot * kept + k) * width + i];
                left = left && state == product(row - kept + 1 + k);
            }
        }
    }
    check(near, of_width("short_conv", width));
    check(left, of_width("what short_conv leaves for the next call", width));
    targets[cut - 1] = 2;
    call.states = cut_states.numbers, call.y = cut_y.data(), call.rows.rows = cut;
    short_conv(call);
    std::fill(sources.begin() + cut, sources.begin() + rows, 2);
    call.projected += cut * 3 * width, call.y += cut * width, call.rows.rows = rows - cut;
    call.rows.starts += cut, call.rows.sources += cut, call.rows.targets += cut;
    short_conv(call);
    bool same = true;
    for (size_t i = 0; i < static_cast<size_t>(rows * width); i++) same = same && cut_y[i] == y[i];
    const float *whole = states.numbers + kept * width, *halves = cut_states.numbers + kept * width;   // of slot 1
    check(same && std::equal(whole, whole + kept * width, halves), of_width("short_conv in two calls", width));
}

// Two sequences, of `rows` rows and of one; then the first again, in two calls that must give the same bits.
void test_pool_recent(int64_t taps, int64_t width) {
    Random random(static_cast<uint64_t>(taps * 100 + width));
    const int64_t kept = taps - 1, rows = 9, all = rows + 1, cut = 4, size = 2 * width;
    const std::vector<float> values = random.normals(all * width), gates = random.normals(all * width),
                             bias = random.normals(taps * width), before = random.normals(5 * kept * size);
    std::vector<int32_t> starts(rows, 0), sources(rows, 3), targets(rows, -1);
    starts.push_back(rows), sources.push_back(0), targets.push_back(4);
    targets[rows - 1] = 1;
    std::vector<float> states = before, y(static_cast<size_t>(all * width));
    const StateRows state_rows = {starts.data(), sources.data(), targets.data(), all};
    PoolRecent call = {state_rows, values.data(), gates.data(), bias.data(), states.data(), y.data(), width, taps};
    pool_recent(call);
    bool near = true, left = true;
    for (int64_t row = 0; row < all; row++) {
        const int64_t start = row < rows ? 0 : rows, source = row < rows ? 3 : 0;
        // The value or gate of a channel in the row or before it.
        const auto given = [&](const std::vector<float>& own, int64_t place, int64_t other, int64_t i) {
            const int64_t kept_row = source * kept + other - start + kept;
            return other < start ? before[static_cast<size_t>(kept_row * size + place * width + i)]
                                 : own[static_cast<size_t>(other * width + i)];
        };
        for (int64_t i = 0; i < width; i++) {
            double total = 0, sum = 0;
            for (int64_t k = 0; k < taps; k++) {
                const int64_t other = row - kept + k;
                const double share = std::exp(double{given(gates, 1, other, i)} + bias[static_cast<size_t>(k * width + i)]);
                total += share, sum += share * given(values, 0, other, i);
            }
            near = near && std::fabs(y[static_cast<size_t>(row * width + i)] - sum / total) <= 2e-6;
            for (int64_t k = 0; k < kept && targets[static_cast<size_t>(row)] >= 0; k++) {
                const int64_t at = (targets[static_cast<size_t>(row)] * kept + k) * size + i, other = row - kept + 1 + k;
                left = left && states[static_cast<size_t>(at)] == given(values, 0, other, i);
                left = left && states[static_cast<size_t>(at + width)] == given(gates, 1, other, i);
            }
        }
    }
    check(near, of_width("pool_recent", width));
    check(left, of_width("what pool_recent leaves for the next call", width));
    std::vector<float> cut_states = before, cut_y(y.size());
    targets[cut - 1] = 2;
    call.states = cut_states.data(), call.y = cut_y.data(), call.rows.rows = cut;
    pool_recent(call);
    std::fill(sources.begin() + cut, sources.begin() + rows, 2);
    call.values += cut * width, call.gates += cut * width, call.y += cut * width, call.rows.rows = rows - cut;
    call.rows.starts += cut, call.rows.sources += cut, call.rows.targets += cut;
    pool_recent(call);
    bool same = true;
    for (size_t i = 0; i < static_cast<size_t>(rows * width); i++) same = same && cut_y[i] == y[i];
    check(same, of_width("pool_recent in two calls", width));
}

}  // namespace

void test_recurrent() {
    for (const int64_t width : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 300, 1027}) {
        for (const int64_t taps : {1, 2, 3, 4}) test_short_conv(taps, width), test_pool_recent(taps, width);
    }
    for (const int64_t width : {11008, 11009}) test_short_conv(4, width);   // past the caches
}

}  // namespace puna::test
