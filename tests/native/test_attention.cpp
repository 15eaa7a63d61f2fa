// Attention over scattered cells, against its definition in double precision.
#include <algorithm>
#include <cstring>

#include "attention/attention.h"
#include "check.h"
#include "core/pool.h"
#include "weights/blocks.h"
#include "rows/rows.h"

namespace puna::test {
namespace {

struct Case {
    int heads, kv_heads, dim, value_dim;
    std::vector<int> starts, counts;   // per row
    KVType type;
    bool sinks;
    float softcap;
};

struct Problem {
    std::vector<float> q, sinks;
    std::vector<uint8_t> stored_keys, stored_values;
    std::vector<float> keys, values;   // decoded: [capacity, kv_heads, dim]
    std::vector<int32_t> cells, starts, counts;
    AttentionCall call;

    Problem(const Case& of, uint64_t seed) : call{} {
        Random random(seed);
        constexpr int capacity = 1500;
        for (int i = 0; i < capacity; i++) cells.push_back(i);
        for (size_t i = capacity - 1; i > 0; i--) {
            std::swap(cells[i], cells[static_cast<size_t>(random.below(static_cast<int>(i) + 1))]);
        }
        starts.assign(of.starts.begin(), of.starts.end());
        counts.assign(of.counts.begin(), of.counts.end());
        const int rows = static_cast<int>(counts.size());
        q = random.normals(int64_t{rows} * of.heads * of.dim);
        keys = random.normals(int64_t{capacity} * of.kv_heads * of.dim);
        values = random.normals(int64_t{capacity} * of.kv_heads * of.value_dim);
        sinks = random.normals(of.heads);
        stored_keys = store(of.type, keys);
        stored_values = store(of.type, values);
        call.q = q.data();
        call.keys = stored_keys.data();
        call.values = stored_values.data();
        call.value_step = kv_bytes(of.type, of.value_dim);
        call.cells = cells.data();
        call.starts = starts.data();
        call.counts = counts.data();
        call.sinks = of.sinks ? sinks.data() : nullptr;
        call.rows = rows;
        call.heads = of.heads;
        call.kv_heads = of.kv_heads;
        call.dim = of.dim;
        call.value_dim = of.value_dim;
        call.key_type = call.value_type = of.type;
        call.scale = 1 / std::sqrt(static_cast<float>(of.dim));
        call.softcap = of.softcap;
    }

    std::vector<float> run(int first, int rows) {
        std::vector<float> out(static_cast<size_t>(rows) * static_cast<size_t>(call.heads * call.value_dim));
        AttentionCall part = call;
        part.q += int64_t{first} * call.heads * call.dim;
        part.starts += first;
        part.counts += first;
        part.rows = rows;
        part.out = out.data();
        attention(part);
        return out;
    }

private:
    // Store `numbers` in a cache and replace them by the values it decodes to.
    static std::vector<uint8_t> store(KVType type, std::vector<float>& numbers) {
        const auto count = static_cast<int64_t>(numbers.size());
        std::vector<uint8_t> bytes(static_cast<size_t>(kv_bytes(type, count)));
        portable::row_kernels.store(type, numbers.data(), bytes.data(), count);
        dequantize_row(static_cast<FileType>(type), bytes.data(), count, numbers.data());
        return bytes;
    }
};

// Whether these kernels multiply numbers stored in this type as 16-bit integers.
bool multiplies_words(KVType type) {
    return type != KVType::f32 && vector_level(cpu_level()) == CpuLevel::avx512;
}

// Check one row and head against the definition, within the error that the arithmetic explains: in float32, a score of
// `dim` products is off by up to `dim` roundings of their magnitudes, a share by twice that relative to itself, plus the
// roundings of the sums. With 16-bit integers, a score is off by 1e-5 of the norms (root mean square), and a result by
// 3e-5 of the values.
void check_head(const Problem& problem, int row, int head, const float* out, const std::string& name) {
    const AttentionCall& call = problem.call;
    const int kv_head = head / call.group(), count = call.counts[row];
    const float* q = call.q + (int64_t{row} * call.heads + head) * call.dim;
    std::vector<double> scores(static_cast<size_t>(count)), sums(static_cast<size_t>(call.value_dim));
    double largest = call.sinks ? call.sinks[head] : -INFINITY, score_error = 0, value_bound = 0;
    const auto cell = [&](int j) { return int64_t{call.cells[call.starts[row] + j]} * call.kv_heads + kv_head; };
    for (int j = 0; j < count; j++) {
        double score = 0, magnitude = 0, q_square = 0, key_square = 0;
        for (int d = 0; d < call.dim; d++) {
            const float key = problem.keys[static_cast<size_t>(cell(j) * call.dim + d)];
            const double product = double{q[d]} * key * call.scale;
            score += product;
            magnitude += std::fabs(product);
            q_square += double{q[d]} * q[d];
            key_square += double{key} * key;
        }
        const double norms = std::sqrt(q_square * key_square) * call.scale;
        if (multiplies_words(call.key_type)) magnitude += 6e-5 * norms / ((call.dim + 8) * 0x1p-24);
        if (call.softcap != 0) score = call.softcap * std::tanh(score / call.softcap);
        scores[static_cast<size_t>(j)] = score;
        largest = std::max(largest, score);
        score_error = std::max(score_error, magnitude * (call.dim + 8) * 0x1p-24 + double{call.softcap} * 0x1p-21);
    }
    double total = call.sinks ? std::exp(call.sinks[head] - largest) : 0;
    for (int j = 0; j < count; j++) {
        const double share = std::exp(scores[static_cast<size_t>(j)] - largest);
        total += share;
        for (int d = 0; d < call.value_dim; d++) {
            const double value = problem.values[static_cast<size_t>(cell(j) * call.value_dim + d)];
            sums[static_cast<size_t>(d)] += share * value;
            value_bound = std::max(value_bound, std::fabs(value));
        }
    }
    const double of_values = multiplies_words(call.value_type) ? 1e-4 : 0;
    const double bound = value_bound * (2 * score_error + (count + 64) * 0x1p-22 + of_values);
    double worst = 0;
    for (int d = 0; d < call.value_dim; d++) {
        const double expected = count ? sums[static_cast<size_t>(d)] / total : 0;
        const double error = std::fabs(out[d] - expected);
        worst = error <= worst ? worst : error;
    }
    check(worst <= bound, name + ": row " + std::to_string(row) + ", head " + std::to_string(head) + " is off by " +
                              std::to_string(worst));
}

void test_case(const Case& of, const std::string& name, uint64_t seed) {
    Problem problem(of, seed);
    const int rows = problem.call.rows, width = problem.call.heads * problem.call.value_dim;
    const std::vector<float> together = problem.run(0, rows);
    for (int row = 0; row < rows; row++) {
        const float* out = together.data() + int64_t{row} * width;
        for (int head = 0; head < of.heads; head++) check_head(problem, row, head, out + head * of.value_dim, name);
        if (rows > 8 && row % 5 != 0) continue;
        const std::vector<float> alone = problem.run(row, 1);
        check(std::memcmp(alone.data(), out, static_cast<size_t>(width) * sizeof(float)) == 0,
              name + ": row " + std::to_string(row) + " depends on its neighbours");
    }
    set_thread_count(1);
    check(problem.run(0, rows) == together, name + ": another result with one thread");
    set_thread_count(2);
}

}  // namespace

void test_attention() {
    const std::vector<int> apart = {3, 900, 0, 40}, lengths = {1, 37, 1100, 0};
    std::vector<int> prompt_starts, prompt_counts;   // rows of a prompt see prefixes of one list
    for (int row = 0; row < 21; row++) {
        prompt_starts.push_back(11);
        prompt_counts.push_back(60 + row);
    }
    // Rows of a longer prompt see windows of it, over two chunks, and the last sees nothing.
    std::vector<int> window_starts, window_counts;
    for (int row = 0; row < 47; row++) {
        window_starts.push_back(row < 30 ? 3 : 3 + 20 * (row - 29));
        window_counts.push_back(row == 46 ? 0 : 480 + 3 * row);
    }
    uint64_t seed = 1;
    for (const KVType type : {KVType::f32, KVType::f16, KVType::bf16, KVType::q8_0, KVType::q4_0}) {
        const std::string kind = " of type " + std::to_string(static_cast<int>(type));
        const bool blocks = type == KVType::q8_0 || type == KVType::q4_0;
        const auto width = [&](int any) { return blocks ? (any + kv_block - 1) / kv_block * kv_block : any; };
        test_case({4, 2, 64, 64, apart, lengths, type, false, 0}, "decoding" + kind, seed++);
        test_case({6, 2, width(20), width(13), apart, lengths, type, true, 0}, "decoding with sinks" + kind, seed++);
        test_case({1, 1, width(1), width(1), apart, lengths, type, false, 30}, "decoding, capped," + kind, seed++);
        test_case({8, 1, width(48), width(80), prompt_starts, prompt_counts, type, false, 0}, "prompt" + kind, seed++);
        test_case({3, 3, width(33), width(17), prompt_starts, prompt_counts, type, true, 5}, "all" + kind, seed++);
        test_case({10, 2, 64, 64, window_starts, window_counts, type, false, 0}, "windows" + kind, seed++);
        test_case({7, 1, width(40), width(24), window_starts, window_counts, type, true, 5}, "odd windows" + kind, seed++);
    }
    test_case({5, 1, 320, 256, window_starts, window_counts, KVType::f16, false, 0}, "wide windows", seed++);
}

}  // namespace puna::test
