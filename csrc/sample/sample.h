// Sampling of a token from one row of logits. The definition of each step is in src/puna/ops/sampling.py.
#pragma once
#include <cstdint>

#include "core/sets.h"

namespace puna {

// The weight of tokens, e^(logit / temperature - largest / temperature), and the center of their ranking: the closer to
// `center`, the earlier.
struct Scale {
    float center, largest, temperature;
};

// Sums over logits: how many are not -infinity, and sums of their distances from the largest.
struct Spread {
    double count, sum, squares;
};

constexpr int reaches_at_once = 8;

struct SampleKernels {
    // Finds the largest logit; false if one is NaN or +infinity.
    bool (*scan)(const float* logits, int64_t count, float* largest);
    // Collects ids from `begin` on whose logit is above `low`, in ascending order, until `room` of them are found or
    // `end` is reached. Returns their number; `stop` is where to continue. Writes up to 16 ids beyond.
    int64_t (*collect)(const float* logits, int64_t begin, int64_t end, float low, int32_t* ids, int64_t room,
                       int64_t* stop);
    // Sum of e^(logit / temperature - largest / temperature).
    double (*sum)(const float* logits, int64_t count, float largest, float temperature);
    // The same sum, and that of each term times (logit - largest), for temperature 1.
    void (*moments)(const float* logits, int64_t count, float largest, double* sum, double* moment);
    Spread (*spread)(const float* logits, int64_t count, float largest);
    // Counts the logits within each of `reaches` of the center, and sums their weights.
    void (*within)(const float* logits, int64_t count, const Scale& scale, const float* reaches, double* sums,
                   int64_t* counts);
    // Collects the ids, ascending, of the logits farther than `low` from `center` and at most `high`. Writes up to 16
    // beyond.
    int64_t (*ring)(const float* logits, int64_t count, float center, float low, float high, int32_t* ids);
    // Copy logits: those at least `least`, those within `reach` of `center`, those whose bit is set in `allowed` (bit i
    // % 32 of word i / 32); -infinity for the others. Write up to 16 floats beyond.
    void (*keep_above)(const float* logits, int64_t count, float least, float* kept);
    void (*keep_within)(const float* logits, int64_t count, float center, float reach, float* kept);
    void (*keep_allowed)(const float* logits, int64_t count, const uint32_t* allowed, float* kept);
};

PUNA_DECLARE_KERNELS(SampleKernels, sample_kernels);

// Writes the ids of the `k` <= count largest logits, descending; the lower id comes first among equals.
void top_k(const float* logits, int64_t count, int64_t k, int64_t* ids);

// Settings for drawing a token from one row of logits.
struct Draw {
    const float* logits;
    int64_t count;
    const uint32_t* allowed;   // as for keep_allowed; null: all
    double uniform;   // in [0, 1)
    double temperature;
    double top_n_sigma;   // 0: off
    int64_t top_k;   // 0 or less: all
    double typical_p, top_p, min_p;
};

// The chosen token, or -1 if there are no logits, one is NaN or +infinity, or all are -infinity.
int64_t choose(const Draw& draw);

}  // namespace puna
