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
    for (size_t i = 0; i < logits.size(); i += 5) logits[i] = i % 2 ? 0.5f : 2.0f;   // exactly at the limits
    std::vector<int32_t> expected, found;
    for (size_t i = 0; i < logits.size(); i++) {
        if (logits[i] > 0.5f && logits[i] <= 2.0f) expected.push_back(static_cast<int32_t>(i));
    }
    std::vector<int32_t> ids(static_cast<size_t>(room + 16));
    for (int64_t at = 0; at < count;) {
        int64_t stop = at;
        const int64_t n = sample_kernels().collect(logits.data(), at, count, 0.5f, 2.0f, ids.data(), room, &stop);
        check(n <= room + 16 && stop > at && stop <= count, "collect does not go on, or goes too far");
        if (stop <= at) break;
        found.insert(found.end(), ids.begin(), ids.begin() + n);
        at = stop;
    }
    check(found == expected, "collect of " + std::to_string(count) + " logits");
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
    const Choice greedy{0, 0, 1, 1, 0, 0};
    check(choose(logits.data(), count, greedy) == expected[0], "the best of " + std::to_string(count));
}

}  // namespace

void test_sampling() {
    for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 65}) {
        test_scan(count);
        for (const int64_t room : {1, 4, 100}) test_collect(count, room);
        test_sum(count);
    }
    for (const int64_t count : {511, 512, 513, 1500, 5003}) test_sum(count);
    for (const int64_t k : {1, 40, 1200}) {
        test_top_k(1200, k);
        test_top_k(5003, k);
    }
}

}  // namespace puna::test
