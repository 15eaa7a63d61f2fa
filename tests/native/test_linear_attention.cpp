// Linear attention, whole and cut into calls, against sums in double precision.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "recurrent/linear_attention.h"

namespace puna::test {
namespace {

enum class Rule { nothing, delta, removal };

std::string of_shape(const char* what, int64_t keys, int64_t width) {
    return what + (" with " + std::to_string(keys) + " keys of width " + std::to_string(width));
}

// Memories of `slots` slots, of which slot 3 holds `numbers`, in a base that begins at a cache line.
struct Slots {
    int64_t heads, keys, width, size;
    std::vector<float> room, additions;
    std::vector<int32_t> base_of, counts, references;
    float* bases;

    Slots(const std::vector<float>& numbers, int64_t slots, int64_t heads, int64_t keys, int64_t width)
        : heads(heads), keys(keys), width(width), size(heads * keys * width), room((slots + 1) * size + 16),
          additions(slots * heads * additions_size(keys, width), NAN), base_of(slots), counts(slots),
          references(slots + 1) {
        bases = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64 / sizeof(float);
        std::copy(numbers.begin(), numbers.end(), bases + 2 * size);
        base_of[3] = 2, references[2] = 1;
    }
    Memories memories() {
        const auto slots = static_cast<int64_t>(counts.size());
        return {bases, additions.data(), base_of.data(), counts.data(), references.data(), slots};
    }
    // The memory of a slot.
    std::vector<double> numbers(int64_t slot) const {
        const float* base = bases + base_of[slot] * size;
        std::vector<double> found(base, base + size);
        for (int64_t head = 0; head < heads; head++) {
            const float* beside = additions.data() + (slot * heads + head) * additions_size(keys, width);
            const float* values = beside + (additions_per_base - 1) * keys;
            const float* factors = values + (additions_per_base - 1) * width;
            for (int64_t i = 0; counts[slot] && i < keys; i++) {
                for (int64_t k = 0; k < width; k++) {
                    double& entry = found[(head * keys + i) * width + k];
                    entry *= factors[i];
                    for (int64_t j = 0; j < counts[slot]; j++) {
                        entry += double{beside[j * keys + i]} * factors[keys + j] * values[j * width + k];
                    }
                }
            }
        }
        return found;
    }
    // Whether a slot of another holds the same bits.
    bool same(int64_t slot, const Slots& other, int64_t others) const {
        if (counts[slot] != other.counts[others]) return false;
        const float *base = bases + base_of[slot] * size, *others_base = other.bases + other.base_of[others] * size;
        bool equal = std::equal(base, base + size, others_base);
        const int64_t beside = additions_size(keys, width);
        for (int64_t head = 0; head < heads; head++) {
            const float* mine = additions.data() + (slot * heads + head) * beside;
            const float* theirs = other.additions.data() + (others * heads + head) * beside;
            const auto equals = [&](int64_t from, int64_t count) {
                return std::equal(mine + from, mine + from + count, theirs + from);
            };
            const int64_t values = (additions_per_base - 1) * keys, factors = values + (additions_per_base - 1) * width;
            equal = equal && equals(0, counts[slot] * keys) && equals(values, counts[slot] * width);
            equal = equal && (!counts[slot] || (equals(factors, keys) && equals(factors + keys, counts[slot])));
        }
        return equal;
    }
};

// One sequence of two heads that share their keys; then again in three calls that must give the same bits.
void test_sequence(int64_t keys, int64_t width, bool of_keys, Rule rule) {
    Random random(static_cast<uint64_t>(keys * 1000 + width));
    const bool delta = rule == Rule::delta, removes = rule == Rule::removal;
    const int64_t rows = 21, heads = 2, cuts[] = {3, 12, rows}, slots = 6;
    std::vector<float> queries = random.normals(rows * keys), key = random.normals(rows * keys),
                       values = random.normals(rows * heads * width), before = random.normals(heads * keys * width);
    std::vector<float> decays = random.normals(rows * heads * (of_keys ? keys : 1));
    const std::vector<float> betas = random.normals(rows * heads);
    for (float& decay : decays) decay = -std::fabs(decay);
    std::vector<float> probes = random.normals(rows * keys), removals = random.normals(rows * keys);
    for (float& entry : key) entry /= std::sqrt(static_cast<float>(keys));
    for (float& removal : removals) removal *= 0.5f / static_cast<float>(keys);
    const std::vector<int32_t> starts(rows, 0);
    std::vector<int32_t> sources(rows, 3), targets(rows, -1);
    targets[9] = 4, targets[rows - 1] = 1;
    const float skips[heads] = {0.5f, -2.0f};
    Slots whole(before, slots, heads, keys, width), cut(before, slots, heads, keys, width);
    std::vector<float> y(static_cast<size_t>(rows * heads * width)), cut_y(y.size());
    const StateRows state_rows = {starts.data(), sources.data(), targets.data(), rows};
    LinearAttention call = {state_rows,
                            queries.data(),
                            key.data(),
                            values.data(),
                            decays.data(),
                            removes ? nullptr : betas.data(),
                            skips,
                            removes ? probes.data() : nullptr,
                            removes ? removals.data() : nullptr,
                            whole.memories(),
                            y.data(),
                            heads,
                            1,
                            keys,
                            width,
                            delta,
                            of_keys,
                            false};
    linear_attention(call);
    bool near = true;
    const std::vector<double> left[] = {whole.numbers(4), whole.numbers(1)};
    for (int64_t head = 0; head < heads; head++) {
        for (int64_t column = 0; column < width; column++) {
            std::vector<double> memory(static_cast<size_t>(keys));
            double largest = 1;
            const auto at_entry = [&](int64_t i) { return static_cast<size_t>((head * keys + i) * width + column); };
            for (int64_t i = 0; i < keys; i++) memory[static_cast<size_t>(i)] = before[at_entry(i)];
            for (int64_t row = 0; row < rows; row++) {
                const int64_t at = row * heads + head;
                const double value = values[static_cast<size_t>(at * width + column)];
                double found = 0, expected = skips[head] * value, weight = 1 + std::fabs(expected);
                for (int64_t i = 0; i < keys; i++) {
                    double& held = memory[static_cast<size_t>(i)];
                    if (removes) found += held * probes[static_cast<size_t>(row * keys + i)];
                    held *= std::exp(double{decays[static_cast<size_t>(of_keys ? at * keys + i : at)]});
                    if (delta) found += held * key[static_cast<size_t>(row * keys + i)];
                }
                const double given = delta ? value - found : value;
                const double added = removes ? given : betas[static_cast<size_t>(at)] * given;
                for (int64_t i = 0; i < keys; i++) {
                    double& held = memory[static_cast<size_t>(i)];
                    if (removes) held -= removals[static_cast<size_t>(row * keys + i)] * found;
                    held += key[static_cast<size_t>(row * keys + i)] * added;
                    expected += held * queries[static_cast<size_t>(row * keys + i)];
                    weight += std::fabs(held * queries[static_cast<size_t>(row * keys + i)]);
                    largest = std::max(largest, std::fabs(held));
                }
                const double error = static_cast<double>(keys + 8) * 1e-5 * static_cast<double>(row + 1);
                const double difference = std::fabs(y[static_cast<size_t>(at * width + column)] - expected);
                near = near && difference <= (weight + largest) * error;
                if (targets[static_cast<size_t>(row)] < 0) continue;
                for (int64_t i = 0; i < keys; i++) {
                    const double stored = left[row == rows - 1][at_entry(i)];
                    near = near && std::fabs(stored - memory[static_cast<size_t>(i)]) <= largest * error;
                }
            }
        }
    }
    check(near, of_shape("linear_attention", keys, width));
    call.memories = cut.memories(), call.y = cut_y.data();
    int32_t source = 3;
    for (int64_t part = 0, begin = 0; part < 3; begin = cuts[part++]) {
        const int64_t count = cuts[part] - begin;
        const int32_t target = part == 2 ? 1 : static_cast<int32_t>(2 * part);   // 0, 2, 1
        std::vector<int32_t> from(static_cast<size_t>(count), source), to(static_cast<size_t>(count), -1);
        if (begin <= 9 && 9 < cuts[part]) to[static_cast<size_t>(9 - begin)] = 4;
        to[static_cast<size_t>(count - 1)] = target, source = target;
        call.rows = {starts.data(), from.data(), to.data(), count};
        linear_attention(call);
        call.queries += count * keys, call.keys += count * keys, call.values += count * heads * width;
        call.decays += count * heads * (of_keys ? keys : 1), call.y += count * heads * width;
        if (removes) call.probes += count * keys, call.removals += count * keys;
        if (!removes) call.betas += count * heads;
    }
    check(std::equal(y.begin(), y.end(), cut_y.begin()) && whole.same(1, cut, 1) && whole.same(4, cut, 4),
          of_shape("linear_attention in three calls", keys, width));
}

}  // namespace

void test_linear_attention() {
    for (const Rule rule : {Rule::nothing, Rule::delta, Rule::removal}) {
        for (const int64_t width : {1, 3, 4, 8, 16, 17, 31, 32, 64, 100, 128, 130, 256}) {
            for (const int64_t keys : {1, 5, 16, 128}) {
                for (const bool of_keys : {false, true}) test_sequence(keys, width, of_keys, rule);
            }
        }
        for (const int64_t width : {512, 516}) test_sequence(256, width, false, rule);   // past the caches
    }
}

}  // namespace puna::test
