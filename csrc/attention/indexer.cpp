#include "attention/indexer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "core/pool.h"

namespace puna {
namespace {

// Entries of a list that one thread scores at once.
constexpr int piece = attention_chunk;
// Scores kept at once, 4 MB, unless a single row has more.
constexpr int64_t most_scores = 1 << 20;

// The thread's memory of `count` values, kept between calls.
template <class T>
T* memory(int64_t count) {
    thread_local std::vector<T> kept;
    if (int64_t(kept.size()) < count) kept.resize(count);
    return kept.data();
}

// Sets where lists begin and how long they are, and copies those of rows that keep all. Returns the other rows.
std::vector<int> place_lists(const IndexerCall& call) {
    std::vector<int> others;
    int copied = 0;   // entries of the list that neighbouring rows share
    for (int row = 0; row < call.rows; row++) {
        call.begins[row] = static_cast<int32_t>(row * call.width());
        call.lengths[row] = std::min(call.counts[row], call.most);
        if (!call.keeps_all(row)) {
            others.push_back(row);
            continue;
        }
        const bool shares = row && call.keeps_all(row - 1) && call.starts[row - 1] == call.starts[row];
        if (shares) call.begins[row] = call.begins[row - 1];
        else copied = 0;
        const int32_t* seen = call.cells + call.starts[row];
        if (call.counts[row] > copied) {
            std::copy(seen + copied, seen + call.counts[row], call.chosen + call.begins[row] + copied);
            copied = call.counts[row];
        }
    }
    return others;
}

// An integer that orders entries: by score, then by place, the first being the largest. NaN counts as infinity.
uint64_t rank_of(float score, int entry) {
    score = score != score ? __builtin_inff() : score + 0.0f;   // no negative zero
    uint32_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return uint64_t(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(entry));
}

// Writes the row's entries with the largest scores, in their order.
void select(const IndexerCall& call, int row, const float* scores) {
    const int count = call.counts[row];
    uint64_t* ranks = memory<uint64_t>(count);
    for (int i = 0; i < count; i++) ranks[i] = rank_of(scores[i], i);
    std::nth_element(ranks, ranks + call.most - 1, ranks + count, std::greater<uint64_t>());
    const uint64_t least = ranks[call.most - 1];
    const int32_t* seen = call.cells + call.starts[row];
    int32_t* to = call.chosen + call.begins[row];
    for (int i = 0; i < count; i++) {
        if (rank_of(scores[i], i) >= least) *to++ = seen[i];
    }
}

}  // namespace

PUNA_DEFINE_CHOICE(IndexerKernels, indexer_kernels)

void choose_cells(const IndexerCall& call) {
    const IndexerKernels& kernel = indexer_kernels();
    const std::vector<int> rows = place_lists(call);
    int longest = 0;
    for (int row : rows) longest = std::max(longest, call.counts[row]);
    const int64_t pieces = (longest + piece - 1) / piece, stride = pieces * piece;
    const int64_t together = std::max<int64_t>(1, most_scores / std::max<int64_t>(stride, 1));
    for (int64_t first = 0; first < int64_t(rows.size()); first += together) {
        const int64_t taken = std::min(together, int64_t(rows.size()) - first);
        float* scores = memory<float>(taken * stride);
        parallel_for(taken * pieces, [&](int64_t index, int) {
            const int64_t at = index / pieces;
            const int row = rows[first + at], begin = static_cast<int>(index % pieces * piece);
            const int end = std::min(call.counts[row], begin + piece);
            if (begin >= end) return;
            thread_local std::vector<float> scratch;
            if (int64_t(scratch.size()) < indexer_scratch(call)) scratch.resize(indexer_scratch(call));
            kernel.score(call, row, begin, end, scores + at * stride + begin, scratch.data());
        });
        parallel_for(taken, [&](int64_t at, int) { select(call, rows[first + at], scores + at * stride); });
    }
}

}  // namespace puna
