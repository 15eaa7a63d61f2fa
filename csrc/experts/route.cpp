#include "experts/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/pool.h"

namespace puna {
namespace {

// The least value of a sum of scores, as in the models' reference implementations: all sigmoids may be 0.
constexpr float min_sum = 1e-20f;

float sigmoid(float logit) { return 1 / (1 + std::exp(-logit)); }

float rank_of(float number) { return std::isnan(number) ? std::numeric_limits<float>::infinity() : number; }

// Chooses the `wanted` best that are not `dropped`, by blocks of `block` (null: none is), best first.
void choose(const float* ranks, int64_t count, const std::vector<char>* dropped, int64_t block, int64_t wanted,
            int32_t* chosen) {
    const auto rank = [&](int64_t i) { return rank_of(ranks[i]); };
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (dropped && (*dropped)[static_cast<size_t>(i / block)]) continue;
        if (found == wanted && !(wanted > 0 && rank(i) > rank(chosen[wanted - 1]))) continue;
        int64_t at = found < wanted ? found++ : wanted - 1;
        for (; at > 0 && rank(i) > rank(chosen[at - 1]); at--) chosen[at] = chosen[at - 1];
        chosen[at] = static_cast<int32_t>(i);
    }
}

// Marks the groups of `block` experts that are not among the best.
void drop_groups(const Routing& routing, const float* ranks, int64_t block, std::vector<char>& dropped) {
    thread_local std::vector<float> sums;
    thread_local std::vector<int32_t> best;
    sums.clear();
    for (const float* group = ranks; group < ranks + routing.count; group += block) {
        best.resize(static_cast<size_t>(std::min(routing.best_of_group, block)));
        choose(group, block, nullptr, 1, static_cast<int64_t>(best.size()), best.data());
        float sum = 0;
        for (const int32_t i : best) sum += rank_of(group[i]);
        sums.push_back(sum);
    }
    best.resize(static_cast<size_t>(routing.used_groups));
    choose(sums.data(), routing.groups, nullptr, 1, routing.used_groups, best.data());
    dropped.assign(static_cast<size_t>(routing.groups), 1);
    for (const int32_t group : best) dropped[static_cast<size_t>(group)] = 0;
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
    thread_local std::vector<float> biased;
    thread_local std::vector<char> dropped;
    if (routing.bias) {
        biased.resize(static_cast<size_t>(routing.count));
        for (int64_t i = 0; i < routing.count; i++) biased[static_cast<size_t>(i)] = scores[i] + routing.bias[i];
    }
    const bool some = routing.used_groups < routing.groups;
    const int64_t block = routing.count / routing.groups;
    if (some) drop_groups(routing, routing.bias ? biased.data() : scores, block, dropped);
    // Without a bias, logits have the same order as scores, and no ties caused by rounding.
    choose(routing.bias ? biased.data() : logits, routing.count, some ? &dropped : nullptr, block, routing.per_token,
           chosen);
    float sum = 0, factor = routing.scale;
    for (int64_t j = 0; j < routing.per_token; j++) sum += scores[chosen[j]];
    if (routing.normalize) factor /= sum > min_sum || std::isnan(sum) ? sum : min_sum;
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
