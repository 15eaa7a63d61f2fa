// Embeddings of n-grams: the rows of a table that a token and those before it are hashed to.
#pragma once
#include <cstdint>

#include "recurrent/recurrent.h"

namespace puna {

// Tokens of a state are floats, which hold numbers below this.
constexpr int32_t ngram_token_limit = 1 << 24;

struct NgramRows {
    StateRows rows;
    const int32_t* tokens;        // [rows]
    const int64_t* multipliers;   // [longest], the token's own first
    const int64_t* sizes;         // [heads]: rows of each head's part of the table
    const int64_t* offsets;       // [heads]: the first of these
    float* states;                // [slots, longest - 1]: the tokens before a row, the latest last, minus `boundary`
    int32_t* found;               // [rows, heads]
    int64_t longest, heads;       // the heads of bigrams come first, then as many of trigrams, ...
    int32_t boundary;             // this token, and every one before it, counts as `boundary` for those after it
};

// Finds the rows of the table: `offset + (token * multiplier ^ earlier token * its multiplier ^ ...) mod size`. Throws
// std::out_of_range for a token that a state cannot hold.
void ngram_rows(const NgramRows& call);

}  // namespace puna
