// The weights of a softmax, from scores that are base-2 exponents. Compiled once per instruction set.
#pragma once
#include "attention/tiles.h"
#include "vector/vector.h"

namespace puna {
namespace {

// 2^x for x <= 0, with a relative error of 1e-7; exactly 1 at 0, 2^-126 below that. NaN stays.
PUNA_INLINE Vec power_of_two(Vec x) {
    x = max(Vec::splat(-126), x);
    const Vec n = round(x), r = x - n;
    Vec p = Vec::splat(0x1.41fbbcp-13f);   // the polynomial of least relative error on [-1/2, 1/2]
    p = fma(p, r, Vec::splat(0x1.5f3e54p-10f));
    p = fma(p, r, Vec::splat(0x1.3b2d4cp-7f));
    p = fma(p, r, Vec::splat(0x1.c6aee8p-5f));
    p = fma(p, r, Vec::splat(0x1.ebfbdcp-3f));
    p = fma(p, r, Vec::splat(0x1.62e43p-1f));
    p = fma(p, r, Vec::splat(1));
    return scale_by_power(p, n);
}

constexpr float minus_infinity = -__builtin_inff();   // clang takes no division by zero for a constant
constexpr float log2_e = 0x1.715476p0f;

PUNA_INLINE float power_of_two(float x) {
    float lanes[Vec::width];
    power_of_two(Vec::splat(x)).store(lanes);
    return lanes[0];
}

// Biases added to one query vector's scores, by distance; `ahead` is the first cell's.
struct Bias {
    const float* values;   // [2 * reach + 1] or null
    int reach, ahead;
};

// Cells beyond the reach get the outermost bias.
PUNA_INLINE void add_bias(float* scores, Range seen, Bias bias) {
    const float* middle = bias.values + bias.reach;
    if (bias.ahead + seen.begin >= -bias.reach && bias.ahead + seen.end - 1 <= bias.reach) {
        const float* values = middle + bias.ahead;
        for (int j = seen.begin; j < seen.end; j++) scores[j] += values[j] * log2_e;
    } else {
        for (int j = seen.begin; j < seen.end; j++) {
            scores[j] += middle[max(-bias.reach, min(bias.reach, bias.ahead + j))] * log2_e;
        }
    }
}

// Turns one query vector's scores for the cells it sees of a chunk into weights: 2^(score - largest).
PUNA_INLINE void turn_into_weights(float* scores, Range seen, float softcap, Bias bias, float& largest, float& sum) {
    const int begin = seen.begin / Vec::width * Vec::width;   // tiles are whole vectors
    const int end = (seen.end + Vec::width - 1) / Vec::width * Vec::width;
    if (softcap != 0) {
        const Vec cap = Vec::splat(softcap * log2_e);
        for (int j = begin; j < end; j += Vec::width) (cap * tanh(Vec::load(scores + j))).store(scores + j);
    }
    if (bias.values) add_bias(scores, seen, bias);
    for (int j = begin; j < seen.begin; j++) scores[j] = minus_infinity;
    for (int j = seen.end; j < end; j++) scores[j] = minus_infinity;
    Vec most = Vec::splat(minus_infinity), others = most;   // two, because each operation waits for the one before it
    int j = begin;
    for (; j + Vec::width < end; j += 2 * Vec::width) {
        most = max(most, Vec::load(scores + j));
        others = max(others, Vec::load(scores + j + Vec::width));
    }
    if (j < end) most = max(most, Vec::load(scores + j));
    largest = max_lane(max(most, others));
    Vec total = Vec::splat(0);
    for (j = begin; j < end; j += Vec::width) {
        const Vec weight = power_of_two(Vec::load(scores + j) - Vec::splat(largest));
        weight.store(scores + j);
        total = total + weight;
    }
    sum = sum_lanes(total);
}

}  // namespace
}  // namespace puna
