#include "recurrent/ngrams.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace puna {

void ngram_rows(const NgramRows& call) {
    const int64_t kept = call.longest - 1, of_order = call.heads / kept;
    const StateRows& rows = call.rows;
    for (int64_t row = 0; row < rows.rows; row++) {
        if (call.tokens[row] < 0 || call.tokens[row] >= ngram_token_limit) {
            throw std::out_of_range("n-grams consist of tokens from 0 to " + std::to_string(ngram_token_limit - 1) +
                                    ", not " + std::to_string(call.tokens[row]));
        }
    }
    std::vector<int32_t> recent(call.longest);   // the row's token, the one before it, ...
    for (int64_t row = 0; row < rows.rows; row++) {
        const float* before = call.states + rows.sources[row] * kept;
        for (int64_t k = 0; k <= kept; k++) {
            const int64_t from_start = row - k - rows.starts[row];
            recent[k] = from_start >= 0 ? call.tokens[row - k]
                                        : static_cast<int32_t>(before[kept + from_start]) + call.boundary;
        }
        if (rows.targets[row] >= 0) {
            float* after = call.states + rows.targets[row] * kept;
            for (int64_t k = 0; k < kept; k++) after[kept - 1 - k] = static_cast<float>(recent[k] - call.boundary);
        }
        uint64_t mixed = static_cast<uint64_t>(recent[0]) * static_cast<uint64_t>(call.multipliers[0]);
        bool ended = false;
        for (int64_t k = 1; k <= kept; k++) {
            ended = ended || recent[k] == call.boundary;
            const int32_t token = ended ? call.boundary : recent[k];
            mixed ^= static_cast<uint64_t>(token) * static_cast<uint64_t>(call.multipliers[k]);
            for (int64_t head = (k - 1) * of_order; head < k * of_order; head++) {
                const auto size = static_cast<uint64_t>(call.sizes[head]);
                call.found[row * call.heads + head] =
                    static_cast<int32_t>(static_cast<uint64_t>(call.offsets[head]) + mixed % size);
            }
        }
    }
}

}  // namespace puna
