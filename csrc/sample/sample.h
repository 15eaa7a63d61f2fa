// From one row of logits to a token. The definition of each step is in src/puna/ops/sampling.py.
#pragma once
#include <cstdint>

#include "core/sets.h"

namespace puna {

struct SampleKernels {
    // The largest logit; false when one is NaN or +infinity.
    bool (*scan)(const float* logits, int64_t count, float* largest);
    // Ids from `begin` on whose logit is above `low` and at most `high`, in ascending order, until `room` of them
    // are found or `end` is reached. Returns how many; `stop` is where to go on. Writes up to 16 ids beyond.
    int64_t (*collect)(const float* logits, int64_t begin, int64_t end, float low, float high, int32_t* ids,
                       int64_t room, int64_t* stop);
    // Sum of e^(logit / temperature - largest / temperature).
    double (*sum)(const float* logits, int64_t count, float largest, float temperature);
};

PUNA_DECLARE_KERNELS(SampleKernels, sample_kernels);

// Writes the ids of the `k` <= count largest logits, descending; the lower id comes first among equals.
void top_k(const float* logits, int64_t count, int64_t k, int64_t* ids);

struct Choice {
    double temperature;
    int64_t top_k;   // 0 or less: all
    double typical_p, top_p, min_p;
    double uniform;   // in [0, 1)
};

// The chosen token, or -1 when there are no logits, a NaN or +infinity among them, or all are -infinity.
int64_t choose(const float* logits, int64_t count, const Choice& choice);

}  // namespace puna
