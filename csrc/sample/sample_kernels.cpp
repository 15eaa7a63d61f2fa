// Passes over all logits, compiled once per instruction set.
#include "sample/sample.h"
#include "vector/vector.h"

namespace puna {
namespace {

constexpr float infinity = 1.0f / 0.0f;

// The logits at i; -infinity beyond the end.
PUNA_INLINE Vec logits_at(const float* logits, int64_t i, int64_t end) {
    if (i + Vec::width <= end) return Vec::load(logits + i);
    float lanes[Vec::width];
    for (int k = 0; k < Vec::width; k++) lanes[k] = i + k < end ? logits[i + k] : -infinity;
    return Vec::load(lanes);
}

bool scan(const float* logits, int64_t count, float* largest) {
    Vec most[2] = {Vec::splat(-infinity), Vec::splat(-infinity)};
    Vec wrong[2] = {Vec::splat(0), Vec::splat(0)};
    const Vec zero = Vec::splat(0);
    for (int64_t i = 0; i < count; i += 2 * Vec::width) {
        for (int k = 0; k < 2; k++) {
            const Vec x = logits_at(logits, i + k * Vec::width, count);
            most[k] = max(most[k], x);
            wrong[k] = fma(max(zero, x), zero, wrong[k]);   // 0 times NaN or infinity is NaN
        }
    }
    *largest = max_lane(max(most[0], most[1]));
    return sum_lanes(wrong[0] + wrong[1]) == 0;
}

int64_t collect(const float* logits, int64_t begin, int64_t end, float low, float high, int32_t* ids, int64_t room,
                int64_t* stop) {
    const Vec below = Vec::splat(low), above = Vec::splat(high);
    int64_t found = 0, i = begin;
    for (; i < end && found < room; i += Vec::width) {
        const Vec x = logits_at(logits, i, end);
        for (uint32_t bits = greater(x, below) & ~greater(x, above); bits; bits &= bits - 1) {
            ids[found++] = int32_t(i + __builtin_ctz(bits));
        }
    }
    *stop = i < end ? i : end;
    return found;
}

double sum_of_exponentials(const float* logits, int64_t count, float largest, float temperature) {
    const Vec scale = Vec::splat(temperature), shift = Vec::splat(largest / temperature);
    double total = 0;
    for (int64_t i = 0; i < count;) {
        Vec sum[2] = {Vec::splat(0), Vec::splat(0)};
        const int64_t end = i + 512 < count ? i + 512 : count;   // few enough floats to add as floats
        for (; i < end; i += 2 * Vec::width) {
            for (int k = 0; k < 2; k++) {
                sum[k] = sum[k] + exp(logits_at(logits, i + k * Vec::width, end) / scale - shift);
            }
        }
        i = end;
        total += double(sum_lanes(sum[0] + sum[1]));
    }
    return total;
}

}  // namespace

const SampleKernels PUNA_SET::sample_kernels = {scan, collect, sum_of_exponentials};

}  // namespace puna
