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

// The number that stands for the cell in the lists of `head`.
int32_t listed(const IndexerCall& call, int head, int32_t cell) {
    return call.block ? cell * call.heads + head : cell;
}

// Sets where the lists of `head` begin and how long they are, and fills those of rows that keep all.
void place_lists(const IndexerCall& call, int head) {
    int32_t* begins = call.begins + int64_t(head) * call.rows;
    int32_t* lengths = call.lengths + int64_t(head) * call.rows;
    int copied = 0;   // entries of the list that neighbouring rows share
    for (int row = 0; row < call.rows; row++) {
        begins[row] = static_cast<int32_t>((int64_t(head) * call.rows + row) * call.width());
        lengths[row] = call.keeps_all(row) ? call.counts[row] : call.most + call.counts[row] % call.group;
        if (!call.keeps_all(row)) continue;
        const bool shares = row && call.keeps_all(row - 1) && call.starts[row - 1] == call.starts[row];
        if (shares) begins[row] = begins[row - 1];
        else copied = 0;
        const int32_t* seen = call.cells + call.starts[row];
        for (; copied < call.counts[row]; copied++) {
            call.chosen[begins[row] + copied] = listed(call, head, seen[copied]);
        }
    }
}

// Returns the rows that see more cells than they keep.
std::vector<int> choosing_rows(const IndexerCall& call) {
    std::vector<int> rows;
    for (int row = 0; row < call.rows; row++) {
        if (!call.keeps_all(row)) rows.push_back(row);
    }
    return rows;
}

// An integer that orders entries: by score, then by place, the first being the largest. NaN counts as infinity.
uint64_t rank_of(float score, int entry) {
    score = score != score ? __builtin_inff() : score + 0.0f;   // no negative zero
    uint32_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return uint64_t(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(entry));
}

// Writes the row's groups of entries with the largest scores, in their order, and the entries after the last group.
void select(const IndexerCall& call, int row, const float* scores) {
    const int groups = call.counts[row] / call.group, most = call.most / call.group;
    uint64_t* ranks = memory<uint64_t>(groups);
    for (int i = 0; i < groups; i++) ranks[i] = rank_of(scores[i], i);
    std::nth_element(ranks, ranks + most - 1, ranks + groups, std::greater<uint64_t>());
    const uint64_t least = ranks[most - 1];
    const int32_t* seen = call.cells + call.starts[row];
    int32_t* to = call.chosen + call.begins[row];
    for (int i = 0; i < groups; i++) {
        if (rank_of(scores[i], i) >= least) to = std::copy_n(seen + int64_t(i) * call.group, call.group, to);
    }
    std::copy(seen + int64_t(groups) * call.group, seen + call.counts[row], to);
}

// Lists of the last cell of each whole group, by which rows choose. Neighbouring rows with the same start share one.
struct LastCells {
    std::vector<int32_t> cells, starts, counts;

    // Returns the call with these lists instead of all cells.
    IndexerCall of(IndexerCall call) {
        starts.resize(static_cast<size_t>(call.rows)), counts.resize(static_cast<size_t>(call.rows));
        int before = -1, begin = 0;   // the row before, and where its list begins
        for (int row : choosing_rows(call)) {
            if (before < 0 || call.starts[before] != call.starts[row]) begin = static_cast<int>(cells.size());
            starts[row] = begin, counts[row] = call.counts[row] / call.group;
            const int32_t* seen = call.cells + call.starts[row];
            for (int i = static_cast<int>(cells.size()) - begin; i < counts[row]; i++) {
                cells.push_back(seen[int64_t(i + 1) * call.group - 1]);
            }
            before = row;
        }
        call.cells = cells.data(), call.starts = starts.data(), call.counts = counts.data();
        call.most /= call.group, call.group = 1;
        return call;
    }
};

// The larger of two products, NaN being the largest.
float larger(float a, float b) { return a > b || a != a ? a : b; }

// Writes the entries of a head's blocks with the largest product, in their order; the last blocks are chosen first.
void select_blocks(const IndexerCall& call, int row, int head, const float* products) {
    const int count = call.counts[row], blocks = (count + call.block - 1) / call.block, most = call.most / call.block;
    uint64_t* ranks = memory<uint64_t>(int64_t(2) * blocks);
    for (int b = 0; b < blocks; b++) {
        const int begin = b * call.block, end = std::min(count, begin + call.block);
        float largest = products[begin];
        for (int i = begin + 1; i < end; i++) largest = larger(largest, products[i]);
        const bool local = b >= blocks - call.local;
        ranks[b] = ranks[blocks + b] = local ? ~uint64_t(0) : rank_of(largest, b);
    }
    std::nth_element(ranks, ranks + most - 1, ranks + blocks, std::greater<uint64_t>());
    const uint64_t least = ranks[most - 1];
    const int32_t* seen = call.cells + call.starts[row];
    const int64_t list = int64_t(head) * call.rows + row;
    int32_t *first = call.chosen + call.begins[list], *to = first;
    for (int b = 0; b < blocks; b++) {
        if (ranks[blocks + b] < least) continue;
        const int begin = b * call.block, end = std::min(count, begin + call.block);
        for (int i = begin; i < end; i++) *to++ = listed(call, head, seen[i]);
    }
    call.lengths[list] = static_cast<int32_t>(to - first);
}

// Computes `height` numbers for each entry of the rows' lists, some rows at a time, by `score(row, begin, end, numbers,
// distance from one to the next, scratch)`. Each row's numbers then go to `use(row, numbers, distance)`.
template <class Score, class Use>
void score_rows(const IndexerCall& call, int height, Score score, Use use) {
    const std::vector<int> rows = choosing_rows(call);
    int longest = 0;
    for (int row : rows) longest = std::max(longest, call.counts[row]);
    const int64_t pieces = (longest + piece - 1) / piece, stride = pieces * piece, size = height * stride;
    const int64_t together = std::max<int64_t>(1, most_scores / std::max<int64_t>(size, 1));
    for (int64_t first = 0; first < int64_t(rows.size()); first += together) {
        const int64_t taken = std::min(together, int64_t(rows.size()) - first);
        float* scores = memory<float>(taken * size);
        parallel_for(taken * pieces, [&](int64_t index, int) {
            const int64_t at = index / pieces;
            const int row = rows[first + at], begin = static_cast<int>(index % pieces * piece);
            const int end = std::min(call.counts[row], begin + piece);
            if (begin >= end) return;
            thread_local std::vector<float> scratch;
            if (int64_t(scratch.size()) < indexer_scratch(call)) scratch.resize(indexer_scratch(call));
            score(row, begin, end, scores + at * size + begin, stride, scratch.data());
        });
        parallel_for(taken, [&](int64_t at, int) { use(rows[first + at], scores + at * size, stride); });
    }
}

}  // namespace

PUNA_DEFINE_CHOICE(IndexerKernels, indexer_kernels)

void choose_cells(const IndexerCall& call) {
    const IndexerKernels& kernel = indexer_kernels();
    place_lists(call, 0);
    LastCells last;
    const IndexerCall scored = call.group == 1 ? call : last.of(call);
    score_rows(
        scored, 1,
        [&](int row, int begin, int end, float* scores, int64_t, float* scratch) {
            kernel.score(scored, row, begin, end, scores, scratch);
        },
        [&](int row, const float* scores, int64_t) { select(call, row, scores); });
}

void choose_blocks(const IndexerCall& call) {
    const IndexerKernels& kernel = indexer_kernels();
    for (int head = 0; head < call.heads; head++) place_lists(call, head);
    score_rows(
        call, call.heads,
        [&](int row, int begin, int end, float* products, int64_t stride, float* scratch) {
            kernel.multiply(call, row, begin, end, products, stride, scratch);
        },
        [&](int row, const float* products, int64_t stride) {
            for (int head = 0; head < call.heads; head++) select_blocks(call, row, head, products + head * stride);
        });
}

}  // namespace puna
