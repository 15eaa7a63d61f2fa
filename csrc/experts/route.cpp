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

// Beyond 20 the 1 is below half a bit of e^logit.
float sqrt_softplus(float logit) { return std::sqrt(logit > 20 ? logit : std::log1p(std::exp(logit))); }

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

void score_row(const Routing& routing, const float* logits, float* scores) {
    switch (routing.scoring) {
        case Scoring::sigmoid:
            for (int64_t i = 0; i < routing.count; i++) scores[i] = sigmoid(logits[i]);
            break;
        case Scoring::sqrt_softplus:
            for (int64_t i = 0; i < routing.count; i++) scores[i] = sqrt_softplus(logits[i]);
            break;
        case Scoring::softmax: {
            float most = logits[0], total = 0;
            for (int64_t i = 1; i < routing.count; i++) most = logits[i] > most ? logits[i] : most;
            for (int64_t i = 0; i < routing.count; i++) total += scores[i] = std::exp(logits[i] - most);
            for (int64_t i = 0; i < routing.count; i++) scores[i] /= total;
            break;
        }
    }
}

// Computes the shares of the experts chosen for one row.
void share_row(const Routing& routing, const float* scores, const int32_t* chosen, float* shares) {
    float sum = 0, factor = routing.scale;
    for (int64_t j = 0; j < routing.per_token; j++) sum += scores[chosen[j]];
    if (routing.normalize) factor /= sum > min_sum || std::isnan(sum) ? sum : min_sum;
    for (int64_t j = 0; j < routing.per_token; j++) shares[j] = scores[chosen[j]] * factor;
}

void choose_row(const Routing& routing, const float* logits, const float* scores, int32_t* chosen) {
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
}

// Routes `count` rows of logits, for each of which `pick(row, scores, chosen)` chooses experts.
template <class Choose>
void route_rows(const Routing& routing, const float* logits, int64_t count, int32_t* chosen, float* shares,
                Choose pick) {
    parallel_ranges(count, 16, [&](int64_t begin, int64_t end, int) {
        thread_local std::vector<float> scores;
        scores.resize(static_cast<size_t>(routing.count));
        for (int64_t t = begin; t < end; t++) {
            int32_t* of_row = chosen + t * routing.per_token;
            score_row(routing, logits + t * routing.count, scores.data());
            pick(t, scores.data(), of_row);
            share_row(routing, scores.data(), of_row, shares + t * routing.per_token);
        }
    });
}

}  // namespace

void route(const Routing& routing, const float* logits, int64_t tokens, int32_t* chosen, float* shares) {
    route_rows(routing, logits, tokens, chosen, shares, [&](int64_t t, const float* scores, int32_t* to) {
        choose_row(routing, logits + t * routing.count, scores, to);
    });
}

void route_by_table(const Routing& routing, const float* logits, const int32_t* table, const int32_t* tokens,
                    int64_t count, int32_t* chosen, float* shares) {
    route_rows(routing, logits, count, chosen, shares, [&](int64_t t, const float*, int32_t* to) {
        std::copy_n(table + tokens[t] * routing.per_token, routing.per_token, to);
    });
}

}  // namespace puna
