#include "experts/route.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/pool.h"

namespace puna {
namespace {

// A sum of scores counts as at least this, as in the models' reference implementations: all sigmoids may be 0.
constexpr float least_sum = 1e-20f;

float sigmoid(float logit) { return 1 / (1 + std::exp(-logit)); }

void choose(const float* ranks, int64_t count, int64_t wanted, int32_t* chosen) {
    const auto rank = [&](int64_t i) {
        return std::isnan(ranks[i]) ? std::numeric_limits<float>::infinity() : ranks[i];
    };
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (found == wanted && !(wanted > 0 && rank(i) > rank(chosen[wanted - 1]))) continue;
        int64_t at = found < wanted ? found++ : wanted - 1;
        for (; at > 0 && rank(i) > rank(chosen[at - 1]); at--) chosen[at] = chosen[at - 1];
        chosen[at] = static_cast<int32_t>(i);
    }
}

// `scores` has room for one row.
void route_row(const Routing& routing, const float* logits, float* scores, int32_t* chosen, float* shares) {
    if (routing.sigmoid) {
        for (int64_t i = 0; i < routing.count; i++) scores[i] = sigmoid(logits[i]);
    } else {
        float most = logits[0], total = 0;
        for (int64_t i = 1; i < routing.count; i++) most = logits[i] > most ? logits[i] : most;
        for (int64_t i = 0; i < routing.count; i++) total += scores[i] = std::exp(logits[i] - most);
        for (int64_t i = 0; i < routing.count; i++) scores[i] /= total;
    }
    if (routing.bias) {
        thread_local std::vector<float> ranks;
        ranks.resize(static_cast<size_t>(routing.count));
        for (int64_t i = 0; i < routing.count; i++) ranks[static_cast<size_t>(i)] = scores[i] + routing.bias[i];
        choose(ranks.data(), routing.count, routing.per_token, chosen);
    } else {   // logits have the order of the scores, and no ties that rounding made
        choose(logits, routing.count, routing.per_token, chosen);
    }
    float sum = 0, factor = routing.scale;
    for (int64_t j = 0; j < routing.per_token; j++) sum += scores[chosen[j]];
    if (routing.normalize) factor /= sum > least_sum || std::isnan(sum) ? sum : least_sum;
    for (int64_t j = 0; j < routing.per_token; j++) shares[j] = scores[chosen[j]] * factor;
}

}  // namespace

void route(const Routing& routing, const float* logits, int64_t tokens, int32_t* chosen, float* shares) {
    parallel_ranges(tokens, 16, [&](int64_t begin, int64_t end, int) {
        thread_local std::vector<float> scores;
        scores.resize(static_cast<size_t>(routing.count));
        for (int64_t t = begin; t < end; t++) {
            route_row(routing, logits + t * routing.count, scores.data(), chosen + t * routing.per_token,
                      shares + t * routing.per_token);
        }
    });
}

}  // namespace puna
