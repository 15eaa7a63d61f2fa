// The choice of cells for sparse attention, against scores in double precision.
#include <algorithm>
#include <set>

#include "attention/indexer.h"
#include "check.h"
#include "core/pool.h"
#include "rows/rows.h"
#include "weights/blocks.h"

namespace puna::test {
namespace {

using Lists = std::vector<std::vector<int32_t>>;

struct Problem {
    std::vector<float> q, weights, keys;   // keys as decoded: [capacity, dim]
    std::vector<uint8_t> stored;
    std::vector<int32_t> cells, starts, counts;
    IndexerCall call;

    Problem(int heads, int dim, KVType type, int most, uint64_t seed) : call{} {
        Random random(seed);
        constexpr int capacity = 1500;
        for (int i = 0; i < capacity; i++) cells.push_back(i);
        for (size_t i = capacity - 1; i > 0; i--) {
            std::swap(cells[i], cells[static_cast<size_t>(random.below(static_cast<int>(i) + 1))]);
        }
        for (int row = 0; row < 9; row++) starts.push_back(11), counts.push_back(most - 4 + row);
        starts.insert(starts.end(), {3, 900, 0, 40});
        counts.insert(counts.end(), {1, 37, 1100, 0});
        const auto rows = static_cast<int>(counts.size());
        q = random.normals(int64_t{rows} * heads * dim);
        weights = random.normals(int64_t{rows} * heads);
        keys = random.normals(int64_t{capacity} * dim);
        const auto count = static_cast<int64_t>(keys.size());
        stored.resize(static_cast<size_t>(kv_bytes(type, count)));
        portable::row_kernels.store(type, keys.data(), stored.data(), count);
        dequantize_row(static_cast<FileType>(type), stored.data(), count, keys.data());
        call.q = q.data(), call.weights = weights.data(), call.keys = stored.data(), call.cells = cells.data();
        call.starts = starts.data(), call.counts = counts.data();
        call.rows = rows, call.heads = heads, call.dim = dim, call.key_type = type, call.most = most;
        call.group = 1;
    }

    Lists run(int first, int rows) const {
        IndexerCall part = call;
        part.q += int64_t{first} * call.heads * call.dim, part.weights += int64_t{first} * call.heads;
        part.starts += first, part.counts += first, part.rows = rows;
        std::vector<int32_t> chosen(static_cast<size_t>(rows * part.width())), begins(static_cast<size_t>(rows));
        std::vector<int32_t> lengths(static_cast<size_t>(rows));
        part.chosen = chosen.data(), part.begins = begins.data(), part.lengths = lengths.data();
        choose_cells(part);
        Lists lists;
        for (size_t row = 0; row < begins.size(); row++) {
            check(begins[row] % attention_chunk == 0, "a list does not begin at a chunk");
            const auto begin = chosen.begin() + begins[row];
            lists.emplace_back(begin, begin + lengths[row]);
        }
        return lists;
    }

    double score(int row, int32_t cell) const {
        double total = 0;
        for (int head = 0; head < call.heads; head++) {
            double product = 0;
            for (int d = 0; d < call.dim; d++) {
                product += double{call.q[(int64_t{row} * call.heads + head) * call.dim + d]} *
                           keys[static_cast<size_t>(int64_t{cell} * call.dim + d)];
            }
            total += call.weights[int64_t{row} * call.heads + head] * std::max(product, 0.0);
        }
        return total;
    }

    // Check that the row's cells are in order, and that none of the others has a larger score.
    void check_row(int row, const std::vector<int32_t>& found, const std::string& name) const {
        const std::string where = name + ": row " + std::to_string(row);
        check(static_cast<int>(found.size()) == std::min(counts[static_cast<size_t>(row)], call.most),
              where + " has " + std::to_string(found.size()) + " cells");
        const std::set<int32_t> chosen(found.begin(), found.end());
        double least = INFINITY, most = -INFINITY, largest = 0;
        size_t at = 0;
        for (int i = 0; i < call.counts[row]; i++) {
            const int32_t cell = call.cells[call.starts[row] + i];
            const double its = score(row, cell);
            largest = std::max(largest, std::fabs(its));
            if (chosen.count(cell)) {
                check(at < found.size() && found[at++] == cell, where + " is out of order");
                least = std::min(least, its);
            } else {
                most = std::max(most, its);
            }
        }
        check(least >= most - 1e-5 * largest, where + " lacks a cell with a larger score");
    }
};

// Check the groups of cells that rows choose, and that neighbours and threads do not change them.
void test_groups(Problem problem, int group, int most, const std::string& name) {
    IndexerCall& call = problem.call;
    call.group = group, call.most = most * group;
    const Lists together = problem.run(0, call.rows);
    for (int row = 0; row < call.rows; row++) {
        const std::string where = name + ": row " + std::to_string(row);
        const std::vector<int32_t>& found = together[static_cast<size_t>(row)];
        check(problem.run(row, 1)[0] == found, where + " depends on its neighbours");
        const int count = call.counts[row], groups = count / group;
        double least = INFINITY, largest_other = -INFINITY, magnitude = 0;
        size_t at = 0;
        int taken = 0;
        for (int g = 0; g < groups; g++) {
            const int32_t* cells = call.cells + call.starts[row] + g * group;
            const double score = problem.score(row, cells[group - 1]);
            magnitude = std::max(magnitude, std::fabs(score));
            if (at < found.size() && found[at] == cells[0]) {
                taken++;
                least = std::min(least, score);
                for (int i = 0; i < group; i++) check(at < found.size() && found[at++] == cells[i], where + " cuts a group");
            } else {
                largest_other = std::max(largest_other, score);
            }
        }
        check(taken == std::min(groups, most), where + " has another number of groups");
        check(least >= largest_other - 1e-5 * magnitude, where + " lacks a group with a larger score");
        for (int i = groups * group; i < count; i++) {
            check(at < found.size() && found[at++] == call.cells[call.starts[row] + i], where + " lacks its last cells");
        }
        check(at == found.size(), where + " has other cells");
    }
    set_thread_count(1);
    check(problem.run(0, call.rows) == together, name + ": other groups with one thread");
    set_thread_count(2);
}

// Check the blocks that each head chooses, and that neighbours and threads do not change them.
void test_blocks(const Problem& problem, int block, int most, int local, const std::string& name) {
    IndexerCall call = problem.call;
    call.weights = nullptr, call.block = block, call.most = most * block, call.local = local;
    const auto run = [&](int first, int rows) {
        IndexerCall part = call;
        part.q += int64_t{first} * call.heads * call.dim, part.starts += first, part.counts += first, part.rows = rows;
        const auto lists = static_cast<size_t>(call.heads) * static_cast<size_t>(rows);
        std::vector<int32_t> chosen(lists * static_cast<size_t>(part.width())), begins(lists), lengths(lists);
        part.chosen = chosen.data(), part.begins = begins.data(), part.lengths = lengths.data();
        choose_blocks(part);
        Lists found;
        for (size_t i = 0; i < lists; i++) {
            const auto begin = chosen.begin() + begins[i];
            found.emplace_back(begin, begin + lengths[i]);
        }
        return found;
    };
    const auto rows = static_cast<size_t>(call.rows);
    const Lists together = run(0, call.rows);
    for (size_t row = 0; row < rows; row++) {
        const Lists alone = run(static_cast<int>(row), 1);
        const int count = call.counts[row], blocks = (count + block - 1) / block;
        for (int head = 0; head < call.heads; head++) {
            const std::string where = name + ": row " + std::to_string(row) + ", head " + std::to_string(head);
            const std::vector<int32_t>& found = together[static_cast<size_t>(head) * rows + row];
            check(alone[static_cast<size_t>(head)] == found, where + " depends on its neighbours");
            const std::set<int32_t> chosen(found.begin(), found.end());
            double least = INFINITY, largest_other = -INFINITY, magnitude = 0;
            int taken = 0;
            size_t at = 0;
            for (int b = 0; b < blocks; b++) {
                const int begin = b * block, end = std::min(count, begin + block);
                double score = -INFINITY;
                for (int i = begin; i < end; i++) {
                    const int32_t cell = call.cells[call.starts[row] + i];
                    double product = 0;
                    for (int d = 0; d < call.dim; d++) {
                        product += double{call.q[(static_cast<int64_t>(row) * call.heads + head) * call.dim + d]} *
                                   problem.keys[static_cast<size_t>(int64_t{cell} * call.dim + d)];
                    }
                    score = std::max(score, product);
                    magnitude = std::max(magnitude, std::fabs(product));
                }
                const bool last = b >= blocks - local;
                const int32_t first = call.cells[call.starts[row] + begin] * call.heads + head;
                if (!chosen.count(first)) {
                    check(!last, where + " lacks its last block");
                    largest_other = std::max(largest_other, score);
                    continue;
                }
                taken++;
                if (!last) least = std::min(least, score);
                for (int i = begin; i < end; i++) {
                    const int32_t number = call.cells[call.starts[row] + i] * call.heads + head;
                    check(at < found.size() && found[at++] == number, where + " is out of order");
                }
            }
            check(at == found.size() && taken == std::min(blocks, most), where + " has other cells");
            check(least >= largest_other - 1e-5 * magnitude, where + " lacks a block with a larger score");
        }
    }
    set_thread_count(1);
    check(run(0, call.rows) == together, name + ": other blocks with one thread");
    set_thread_count(2);
}

}  // namespace

void test_indexer() {
    uint64_t seed = 1;
    for (const KVType type : {KVType::f32, KVType::f16, KVType::bf16, KVType::q8_0, KVType::q4_0}) {
        const bool blocks = type == KVType::q8_0 || type == KVType::q4_0;
        for (const int heads : {1, 5, 8, 13}) {
            const int dim = blocks ? 32 * heads : 7 * heads;
            const std::string name = std::to_string(heads) + " heads of type " + std::to_string(static_cast<int>(type));
            const Problem problem(heads, dim, type, 20 + heads, seed++);
            const Lists together = problem.run(0, problem.call.rows);
            for (int row = 0; row < problem.call.rows; row++) {
                problem.check_row(row, together[static_cast<size_t>(row)], name);
                check(problem.run(row, 1)[0] == together[static_cast<size_t>(row)],
                      name + ": row " + std::to_string(row) + " depends on its neighbours");
            }
            set_thread_count(1);
            check(problem.run(0, problem.call.rows) == together, name + ": another choice with one thread");
            set_thread_count(2);
            test_groups(problem, 1 + heads, 3, name + " by groups");
            test_blocks(problem, 1 + heads, 3, heads % 3, name + " by blocks");
        }
    }
}

}  // namespace puna::test
