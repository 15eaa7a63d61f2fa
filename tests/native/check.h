// Shared by the kernel tests: counted checks and reproducible random numbers.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace puna::test {

// Count a check. A failure makes the program fail; the first few are printed.
void check(bool good, const std::string& what);

// The same numbers on every machine (splitmix64).
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t bits() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    int below(int limit) { return static_cast<int>(bits() % static_cast<uint64_t>(limit)); }
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }   // in [0, 1)
    float normal() {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        return static_cast<float>(radius * std::cos(6.283185307179586 * uniform()));
    }
    std::vector<float> normals(int64_t count) {
        std::vector<float> values(static_cast<size_t>(count));
        for (float& value : values) value = normal();
        return values;
    }

private:
    uint64_t state_;
};

// Each function tests the kernels of the CPU level in use.
void test_matrices();
void test_attention();
void test_indexer();
void test_rows();
void test_linear_attention();
void test_recurrent();
void test_sampling();

}  // namespace puna::test
