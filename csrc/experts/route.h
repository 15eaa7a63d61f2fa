// The choice of a token's experts.
#pragma once
#include <cstdint>

namespace puna {

// The softmax over all experts, sigmoids, or sqrt(ln(1 + e^logit)).
enum class Scoring { softmax, sigmoid, sqrt_softplus };

struct Routing {
    int64_t count, per_token;   // all experts, and those chosen for a token: per_token <= those in the used groups
    int64_t groups, used_groups;   // of equal size: groups divides count
    int64_t best_of_group;         // a group is ranked by this many of its experts
    Scoring scoring;            // how logits become scores
    bool normalize;             // whether shares are divided by their sum
    float scale;
    const float* bias;          // [count], or null
};

// For each row of `logits` [tokens, count], the best experts and their shares, [tokens, per_token]: best first, equal
// ones by number. The best have the largest logits or, with a bias, the largest score + bias; NaN counts as the
// largest. They are chosen from the `used_groups` best groups only, those with the largest sum of their `best_of_group`
// best values of score + bias; equal groups by number. A share is the score, divided by the sum over the chosen ones if
// `normalize`, times `scale`.
void route(const Routing& routing, const float* logits, int64_t tokens, int32_t* chosen, float* shares);

// The same for the experts in row tokens[t] of `table` [any, per_token], all of which must exist.
void route_by_table(const Routing& routing, const float* logits, const int32_t* table, const int32_t* tokens,
                    int64_t count, int32_t* chosen, float* shares);

}  // namespace puna
