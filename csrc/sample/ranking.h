// Tokens ordered by the distance of their logits from a value, sorted only where needed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sample/sample.h"

namespace puna {

// Memory for collecting ids, with room for a whole vector beyond `count`; one per thread.
int32_t* id_buffer(int64_t count);

// Tokens are ranked by the distance of their logit from the center, equal ones by id. With the largest logit as the
// center, that is the order for top-p and draws; with the expected logit, for typical-p.
//
// Passes over all logits find the tokens within a few reaches. A cut refines the ring that contains it until the ring
// has few enough tokens to be sorted; a small row is sorted entirely.
class Ranking {
public:
    // The logits must outlive it; `scale.center` is finite.
    Ranking(const float* logits, int64_t count, const Scale& scale);

    // The weight of all tokens.
    double total() const { return rungs_.back().sum; }

    // Returns the weight of the shortest prefix heavier than `mass` (or as heavy, unless `strictly`), or of all tokens
    // if there is none. `last` and `keep` refer to that prefix.
    double cut(double mass, bool strictly);

    // The last token of the prefix.
    int32_t last() const { return tokens_[last_].id; }

    // Copies the prefix's logits, -infinity for the others. Writes up to 16 floats beyond.
    void keep(float* kept) const;

    // The total weight of tokens that weigh at least `least`; the center is the largest logit.
    double sum_above(double least);

private:
    struct Token {
        float logit;
        int32_t id;
        double weight;
    };
    // The tokens within `reach` of the center.
    struct Rung {
        float reach;
        double sum;
        int64_t count;
    };

    // Adds rungs at `reaches`, an array of `reaches_at_once`.
    void climb(const float* reaches);
    // Sets `tokens_` to those beyond `low`, up to `high`, unordered.
    void collect(float low, float high);
    bool before(const Token& a, const Token& b) const;

    const float* logits_;
    int64_t count_;
    Scale scale_;
    float step_;   // a distance over which weights change
    std::vector<Rung> rungs_;   // ascending, from nothing to everything
    std::vector<Token>& tokens_;   // of the current ring
    std::size_t last_ = 0;
    float inner_ = -1, outer_ = -1;   // the limits of that ring
};

}  // namespace puna
