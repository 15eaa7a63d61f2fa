// From one row of logits to a token. The definition of each step is in src/puna/ops/sampling.py.
#pragma once
#include <cstdint>

#include "core/sets.h"

namespace puna {

// What tokens weigh, e^(logit / temperature - largest / temperature), and from where they are ranked: the closer to
// `center`, the earlier.
struct Scale {
    float center, largest, temperature;
};

// Sums over logits: how many are not -infinity, and what their distances from the largest come to.
struct Spread {
    double count, sum, squares;
};

constexpr int reaches_at_once = 8;

struct SampleKernels {
    // The largest logit; false when one is NaN or +infinity.
    bool (*scan)(const float* logits, int64_t count, float* largest);
    // Ids from `begin` on whose logit is above `low`, in ascending order, until `room` of them are found or `end` is
    // reached. Returns how many; `stop` is where to go on. Writes up to 16 ids beyond.
    int64_t (*collect)(const float* logits, int64_t begin, int64_t end, float low, int32_t* ids, int64_t room,
                       int64_t* stop);
    // Sum of e^(logit / temperature - largest / temperature).
    double (*sum)(const float* logits, int64_t count, float largest, float temperature);
    // The same sum, and that of each term times (logit - largest), where temperature is 1.
    void (*moments)(const float* logits, int64_t count, float largest, double* sum, double* moment);
    Spread (*spread)(const float* logits, int64_t count, float largest);
    // How many logits are within each of `reaches` of the center, and what they weigh together.
    void (*within)(const float* logits, int64_t count, const Scale& scale, const float* reaches, double* sums,
                   int64_t* counts);
    // Ids, ascending, of the logits farther than `low` from `center` and at most `high`. Writes up to 16 beyond.
    int64_t (*ring)(const float* logits, int64_t count, float center, float low, float high, int32_t* ids);
    // Copies of logits: of those at least `least`, those within `reach` of `center`, those whose bit is set in
    // `allowed` (bit i % 32 of word i / 32); -infinity for the others. Write up to 16 floats beyond.
    void (*keep_above)(const float* logits, int64_t count, float least, float* kept);
    void (*keep_within)(const float* logits, int64_t count, float center, float reach, float* kept);
    void (*keep_allowed)(const float* logits, int64_t count, const uint32_t* allowed, float* kept);
};

PUNA_DECLARE_KERNELS(SampleKernels, sample_kernels);

// Writes the ids of the `k` <= count largest logits, descending; the lower id comes first among equals.
void top_k(const float* logits, int64_t count, int64_t k, int64_t* ids);

// How a token is drawn from one row of logits.
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

// The chosen token, or -1 when there are no logits, a NaN or +infinity among them, or all are -infinity.
int64_t choose(const Draw& draw);

}  // namespace puna
