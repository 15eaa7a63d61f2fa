// Passes over all logits, compiled once per instruction set.
#include "sample/sample.h"
#include "vector/vector.h"

namespace puna {
namespace {

constexpr float infinity = __builtin_inff();   // clang takes no division by zero for a constant

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

int64_t collect(const float* logits, int64_t begin, int64_t end, float low, int32_t* ids, int64_t room,
                int64_t* stop) {
    const Vec below = Vec::splat(low);
    int64_t found = 0, i = begin;
    for (; i < end && found < room; i += Vec::width) {
        const Vec x = logits_at(logits, i, end);
        for (uint32_t bits = greater(x, below); bits; bits &= bits - 1) {
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

constexpr int64_t block = 512;   // few enough floats to add as floats

void moments(const float* logits, int64_t count, float largest, double* sum, double* moment) {
    const Vec most = Vec::splat(largest), lowest = Vec::splat(-88);
    *sum = *moment = 0;
    for (int64_t begin = 0; begin < count; begin += block) {
        const int64_t end = begin + block < count ? begin + block : count;
        Vec weights = Vec::splat(0), products = Vec::splat(0);
        for (int64_t i = begin; i < end; i += Vec::width) {
            const Vec shifted = logits_at(logits, i, end) - most, weight = exp(shifted);
            weights = weights + weight;
            products = fma(weight, max(lowest, shifted), products);   // below, weights are 0
        }
        *sum += double(sum_lanes(weights));
        *moment += double(sum_lanes(products));
    }
}

Spread spread(const float* logits, int64_t count, float largest) {
    const Vec most = Vec::splat(largest), one = Vec::splat(1), finite = Vec::splat(3.4028235e38f);
    Spread total{0, 0, 0};
    for (int64_t begin = 0; begin < count; begin += block) {
        const int64_t end = begin + block < count ? begin + block : count;
        Vec counts = Vec::splat(0), sums = Vec::splat(0), squares = Vec::splat(0);
        for (int64_t i = begin; i < end; i += Vec::width) {
            const Vec away = most - logits_at(logits, i, end);
            counts = add_where(counts, one, away, finite);
            sums = add_where(sums, away, away, finite);
            squares = add_where(squares, away * away, away, finite);
        }
        total.count += double(sum_lanes(counts));
        total.sum += double(sum_lanes(sums));
        total.squares += double(sum_lanes(squares));
    }
    return total;
}

PUNA_INLINE Vec distance(Vec x, Vec center) { return max(x - center, center - x); }

void within(const float* logits, int64_t count, const Scale& scale, const float* reaches, double* sums,
            int64_t* counts) {
    const Vec center = Vec::splat(scale.center), temperature = Vec::splat(scale.temperature);
    const Vec shift = Vec::splat(scale.largest / scale.temperature), one = Vec::splat(1);
    for (int k = 0; k < reaches_at_once; k++) sums[k] = 0, counts[k] = 0;
    for (int64_t begin = 0; begin < count; begin += block) {
        const int64_t end = begin + block < count ? begin + block : count;
        Vec weights[reaches_at_once], found[reaches_at_once];
        for (int k = 0; k < reaches_at_once; k++) weights[k] = found[k] = Vec::splat(0);
        for (int64_t i = begin; i < end; i += Vec::width) {
            const Vec x = logits_at(logits, i, end);
            const Vec away = distance(x, center), weight = exp(x / temperature - shift);
            for (int k = 0; k < reaches_at_once; k++) {
                const Vec reach = Vec::splat(reaches[k]);
                weights[k] = add_where(weights[k], weight, away, reach);
                found[k] = add_where(found[k], one, away, reach);
            }
        }
        for (int k = 0; k < reaches_at_once; k++) {
            sums[k] += double(sum_lanes(weights[k]));
            counts[k] += int64_t(sum_lanes(found[k]));
        }
    }
}

int64_t ring(const float* logits, int64_t count, float center, float low, float high, int32_t* ids) {
    const Vec from = Vec::splat(center), below = Vec::splat(low), above = Vec::splat(high);
    int64_t found = 0;
    for (int64_t i = 0; i < count; i += Vec::width) {
        const Vec away = distance(logits_at(logits, i, count), from);
        for (uint32_t bits = greater(away, below) & ~greater(away, above); bits; bits &= bits - 1) {
            ids[found++] = int32_t(i + __builtin_ctz(bits));
        }
    }
    return found;
}

void keep_above(const float* logits, int64_t count, float least, float* kept) {
    const Vec limit = Vec::splat(least), none = Vec::splat(-infinity);
    for (int64_t i = 0; i < count; i += Vec::width) {
        const Vec x = logits_at(logits, i, count);
        pick(greater(limit, x), none, x).store(kept + i);
    }
}

void keep_within(const float* logits, int64_t count, float center, float reach, float* kept) {
    const Vec from = Vec::splat(center), limit = Vec::splat(reach), none = Vec::splat(-infinity);
    for (int64_t i = 0; i < count; i += Vec::width) {
        const Vec x = logits_at(logits, i, count);
        pick(greater(distance(x, from), limit), none, x).store(kept + i);
    }
}

void keep_allowed(const float* logits, int64_t count, const uint32_t* allowed, float* kept) {
    const Vec none = Vec::splat(-infinity);
    for (int64_t i = 0; i < count; i += Vec::width) {
        pick(allowed[i / 32] >> (i % 32), logits_at(logits, i, count), none).store(kept + i);
    }
}

}  // namespace

const SampleKernels PUNA_SET::sample_kernels = {
    scan, collect, sum_of_exponentials, moments, spread, within, ring, keep_above, keep_within, keep_allowed,
};

}  // namespace puna
