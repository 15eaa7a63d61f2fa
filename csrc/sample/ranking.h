// Tokens in the order of how close their logits are to some value, sorted only where somebody looks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sample/sample.h"

namespace puna {

// Memory for ids to be collected into, with room for a whole vector beyond `count`; one per thread.
int32_t* id_buffer(int64_t count);

// Tokens are ranked by the distance of their logit from the center, equal ones by id. From the largest logit that
// is the order in which top-p and draws take them; from the expected logit, that of typical-p.
//
// Passes over all logits find out what is within a few reaches. A cut refines the ring in which it lies until that
// holds few enough tokens to be sorted; those of a small row all are.
class Ranking {
public:
    // The logits must outlive it; `scale.center` is finite.
    Ranking(const float* logits, int64_t count, const Scale& scale);

    // What all tokens weigh.
    double total() const { return rungs_.back().sum; }

    // What the shortest start weighs that is heavier than `mass` (or as heavy, unless `strictly`); all of it if
    // none is. `last` and `keep` are about that start.
    double cut(double mass, bool strictly);

    // The last token of the start.
    int32_t last() const { return tokens_[last_].id; }

    // Copies the logits of the start, -infinity for the others. Writes up to 16 floats beyond.
    void keep(float* kept) const;

    // What tokens weigh together that weigh at least `least`; the center is the largest logit.
    double sum_above(double least);

private:
    struct Token {
        float logit;
        int32_t id;
        double weight;
    };
    // What is within `reach` of the center.
    struct Rung {
        float reach;
        double sum;
        int64_t count;
    };

    // Adds rungs at `reaches`, which are `reaches_at_once`.
    void climb(const float* reaches);
    // Sets `tokens_` to those beyond `low`, up to `high`, in no order.
    void collect(float low, float high);
    bool before(const Token& a, const Token& b) const;

    const float* logits_;
    int64_t count_;
    Scale scale_;
    float step_;   // a distance over which weights change
    std::vector<Rung> rungs_;   // ascending, from nothing to everything
    std::vector<Token>& tokens_;   // of the ring looked at
    std::size_t last_ = 0;
    float inner_ = -1, outer_ = -1;   // between which that ring lies
};

}  // namespace puna
