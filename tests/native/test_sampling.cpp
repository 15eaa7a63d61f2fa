// The passes over logits against plain loops.
#include <algorithm>

#include "check.h"
#include "sample/sample.h"

namespace puna::test {
namespace {

void test_scan(int64_t count) {
    Random random(static_cast<uint64_t>(count));
    std::vector<float> logits = random.normals(count);
    for (size_t i = 0; i < logits.size(); i++) {
        const float before = logits[i];
        float largest = 0;
        for (const float bad : {NAN, INFINITY}) {
            logits[i] = bad;
            check(!sample_kernels().scan(logits.data(), count, &largest), "scan overlooks a value that is not finite");
        }
        logits[i] = -INFINITY;
        float expected = -INFINITY;
        for (const float each : logits) expected = std::max(expected, each);
        check(sample_kernels().scan(logits.data(), count, &largest) && largest == expected, "scan with -infinity");
        logits[i] = before;
    }
}

void test_collect(int64_t count, int64_t room) {
    Random random(static_cast<uint64_t>(count));
    std::vector<float> logits = random.normals(count);
    for (size_t i = 0; i < logits.size(); i += 5) logits[i] = 0.5f;   // exactly at the limit
    std::vector<int32_t> expected, found;
    for (size_t i = 0; i < logits.size(); i++) {
        if (logits[i] > 0.5f) expected.push_back(static_cast<int32_t>(i));
    }
    std::vector<int32_t> ids(static_cast<size_t>(room + 16));
    for (int64_t at = 0; at < count;) {
        int64_t stop = at;
        const int64_t n = sample_kernels().collect(logits.data(), at, count, 0.5f, ids.data(), room, &stop);
        check(n <= room + 16 && stop > at && stop <= count, "collect does not go on, or goes too far");
        if (stop <= at) break;
        found.insert(found.end(), ids.begin(), ids.begin() + n);
        at = stop;
    }
    check(found == expected, "collect of " + std::to_string(count) + " logits");
}

// Logits, some of them -infinity and some exactly 1 away from 0.25.
std::vector<float> gapped(int64_t count) {
    Random random(static_cast<uint64_t>(count));
    std::vector<float> logits = random.normals(count);
    for (size_t i = 1; i < logits.size(); i += 7) logits[i] = -INFINITY;
    for (size_t i = 3; i < logits.size(); i += 5) logits[i] = i % 2 ? 1.25f : -0.75f;
    return logits;
}

void test_within(int64_t count) {
    const std::vector<float> logits = gapped(count);
    const Scale scale{0.25f, 3, 0.7f};
    const float reaches[reaches_at_once] = {-1, 0, 0.1f, 1, 1.5f, 0.5f, 2, 3e38f};
    double sums[reaches_at_once];
    int64_t counts[reaches_at_once];
    sample_kernels().within(logits.data(), count, scale, reaches, sums, counts);
    for (int k = 0; k < reaches_at_once; k++) {
        double sum = 0;
        int64_t found = 0;
        for (const float each : logits) {
            if (std::fabs(each - scale.center) > reaches[k]) continue;
            sum += std::exp((double{each} - scale.largest) / double{scale.temperature});
            found++;
        }
        check(counts[k] == found, "how many of " + std::to_string(count) + " are within reach");
        check(std::fabs(sums[k] - sum) <= sum * 1e-5, "what those within reach weigh");
    }
}

void test_ring(int64_t count) {
    const std::vector<float> logits = gapped(count);
    for (const float low : {-1.0f, 0.5f, 1.0f}) {
        std::vector<int32_t> expected, ids(static_cast<size_t>(count + 16));
        for (size_t i = 0; i < logits.size(); i++) {
            const float away = std::fabs(logits[i] - 0.25f);
            if (away > low && away <= 1.0f) expected.push_back(static_cast<int32_t>(i));
        }
        ids.resize(static_cast<size_t>(sample_kernels().ring(logits.data(), count, 0.25f, low, 1.0f, ids.data())));
        check(ids == expected, "the ring of " + std::to_string(count) + " logits");
    }
}

void test_keep(int64_t count) {
    const std::vector<float> logits = gapped(count);
    const size_t size = logits.size();
    Random random(static_cast<uint64_t>(count));
    std::vector<uint32_t> bits((size + 31) / 32);
    for (uint32_t& word : bits) word = static_cast<uint32_t>(random.below(1 << 16) * 65537);
    std::vector<float> above(size + 16), within(size + 16), allowed(size + 16);
    sample_kernels().keep_above(logits.data(), count, -0.75f, above.data());
    sample_kernels().keep_within(logits.data(), count, 0.25f, 1.0f, within.data());
    sample_kernels().keep_allowed(logits.data(), count, bits.data(), allowed.data());
    for (size_t i = 0; i < size; i++) {
        const float x = logits[i];
        check(above[i] == (x >= -0.75f ? x : -INFINITY), "keep_above");
        check(within[i] == (std::fabs(x - 0.25f) <= 1.0f ? x : -INFINITY), "keep_within");
        check(allowed[i] == (bits[i / 32] >> i % 32 & 1 ? x : -INFINITY), "keep_allowed");
    }
}

void test_moments(int64_t count) {
    const std::vector<float> logits = gapped(count);
    double sum = 0, moment = 0, finite = 0, away = 0, squares = 0, found_sum, found_moment;
    for (const float each : logits) {
        if (each == -INFINITY) continue;
        const double shifted = double{each} - 4;
        sum += std::exp(shifted), moment += shifted * std::exp(shifted);
        finite += 1, away -= shifted, squares += shifted * shifted;
    }
    sample_kernels().moments(logits.data(), count, 4, &found_sum, &found_moment);
    check(std::fabs(found_sum - sum) <= sum * 1e-5, "sum of weights");
    check(std::fabs(found_moment - moment) <= -moment * 1e-5, "moment of " + std::to_string(count) + " logits");
    const Spread spread = sample_kernels().spread(logits.data(), count, 4);
    check(spread.count == finite, "how many logits are finite");
    check(std::fabs(spread.sum - away) <= away * 1e-5, "sum of distances");
    check(std::fabs(spread.squares - squares) <= squares * 1e-5, "sum of squared distances");
}

void test_sum(int64_t count) {
    Random random(static_cast<uint64_t>(count));
    std::vector<float> logits = random.normals(count);
    for (size_t i = 3; i < logits.size(); i += 11) logits[i] = -INFINITY;
    const float largest = *std::max_element(logits.begin(), logits.end());
    for (const float temperature : {0.3f, 1.0f, 5.0f}) {
        double expected = 0;
        for (const float each : logits) expected += std::exp((double{each} - largest) / temperature);
        const double sum = sample_kernels().sum(logits.data(), count, largest, temperature);
        check(std::fabs(sum - expected) <= expected * 1e-5, "sum of " + std::to_string(count) + " exponentials");
    }
}

void test_top_k(int64_t count, int64_t k) {
    Random random(static_cast<uint64_t>(count));
    std::vector<float> logits(static_cast<size_t>(count));
    for (float& each : logits) each = static_cast<float>(random.below(50));   // many ties
    std::vector<int64_t> expected(static_cast<size_t>(count)), ids(static_cast<size_t>(k));
    for (size_t i = 0; i < expected.size(); i++) expected[i] = static_cast<int64_t>(i);
    std::stable_sort(expected.begin(), expected.end(), [&](int64_t a, int64_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    expected.resize(static_cast<size_t>(k));
    top_k(logits.data(), count, k, ids.data());
    check(ids == expected, "the best " + std::to_string(k) + " of " + std::to_string(count));
    const Draw greedy{logits.data(), count, nullptr, 0, 0, 0, 0, 1, 1, 0};
    check(choose(greedy) == expected[0], "the best of " + std::to_string(count));
}

}  // namespace

void test_sampling() {
    for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 65}) {
        test_scan(count);
        for (const int64_t room : {1, 4, 100}) test_collect(count, room);
        test_sum(count);
        test_within(count);
        test_ring(count);
        test_keep(count);
        test_moments(count);
    }
    for (const int64_t count : {511, 512, 513, 1500, 5003}) {
        test_sum(count);
        test_within(count);
        test_moments(count);
    }
    for (const int64_t k : {1, 40, 1200}) {
        test_top_k(1200, k);
        test_top_k(5003, k);
    }
}

}  // namespace puna::test
