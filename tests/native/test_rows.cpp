// Norms, rotation, gating and storing against their definitions in double precision.
#include <algorithm>

#include "check.h"
#include "vector/half.h"
#include "weights/blocks.h"
#include "rows/rows.h"

namespace puna::test {
namespace {

std::string of_width(const char* what, int64_t width) { return what + (" of width " + std::to_string(width)); }

void test_norm(int64_t width, bool residual) {
    Random random(static_cast<uint64_t>(width));
    constexpr int64_t rows = 3;
    const float eps = 1e-5f;
    const std::vector<float> x = random.normals(rows * width), more = random.normals(rows * width),
                             weight = random.normals(width);
    std::vector<float> sum(x.size()), y(x.size());
    rms_norm(x.data(), residual ? more.data() : nullptr, weight.data(), eps, rows, 1, width,
             residual ? sum.data() : nullptr, y.data());
    bool near = true, added = true;
    for (int64_t row = 0; row < rows; row++) {
        const auto value = [&](int64_t i) {
            const size_t at = static_cast<size_t>(row * width + i);
            return residual ? x[at] + more[at] : x[at];
        };
        double squares = 0;
        for (int64_t i = 0; i < width; i++) squares += double{value(i)} * value(i);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
        for (int64_t i = 0; i < width; i++) {
            const size_t at = static_cast<size_t>(row * width + i);
            const double expected = value(i) * factor * weight[static_cast<size_t>(i)];
            const double allowed = std::fabs(expected) * static_cast<double>(width + 16) * 0x1p-24;
            near = near && std::fabs(y[at] - expected) <= allowed;
            added = added && (!residual || sum[at] == value(i));
        }
    }
    check(near, of_width("rms_norm", width));
    check(added, of_width("the sum of rms_norm", width));
}

void test_layer_norm(int64_t width, bool biased) {
    Random random(static_cast<uint64_t>(width));
    constexpr int64_t rows = 3;
    const std::vector<float> x = random.normals(rows * width), weight = random.normals(width),
                             bias = random.normals(width);
    std::vector<float> y(x.size());
    layer_norm(x.data(), weight.data(), biased ? bias.data() : nullptr, 1e-5f, rows, 1, width, y.data());
    bool near = true;
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x.data() + row * width, *to = y.data() + row * width;
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < width; i++) mean += from[i] / static_cast<double>(width);
        for (int64_t i = 0; i < width; i++) variance += (from[i] - mean) * (from[i] - mean) / static_cast<double>(width);
        for (int64_t i = 0; i < width; i++) {
            const double added = biased ? bias[static_cast<size_t>(i)] : 0, factor = weight[static_cast<size_t>(i)];
            const double expected = (from[i] - mean) / std::sqrt(variance + 1e-5f) * factor + added;
            const double size = 4 * std::fabs(factor) + std::fabs(added);
            near = near && std::fabs(to[i] - expected) <= size * static_cast<double>(width + 16) * 0x1p-24;
        }
    }
    check(near, of_width("layer_norm", width));
}

void test_rope(int64_t pairs, bool neox, int64_t axis_count) {
    Random random(static_cast<uint64_t>(pairs));
    const int64_t heads = 3, dim = 2 * pairs + 5;   // numbers beyond the pairs are left alone
    const std::vector<int32_t> positions = {0, 1, 77, 131071, -5, 12, 900, 3, 100000, 0, 64, 8};
    const int64_t rows = static_cast<int64_t>(positions.size()) / axis_count;
    std::vector<int32_t> axes;
    for (int64_t i = 0; i < pairs; i++) axes.push_back(static_cast<int32_t>(i * i % axis_count));
    std::vector<float> frequencies;
    for (int64_t i = 0; i < pairs; i++) {
        const double share = static_cast<double>(i) / static_cast<double>(pairs);
        frequencies.push_back(static_cast<float>(std::pow(10000.0, -share)));
    }
    const std::vector<float> before = random.normals(rows * heads * dim);
    std::vector<float> x = before;
    const float magnitude = 1.25f;
    rope(x.data(), positions.data(), axis_count > 1 ? axes.data() : nullptr, frequencies.data(), magnitude, neox, rows,
         heads, dim, pairs, axis_count);
    bool near = true, kept = true;
    for (int64_t vector = 0; vector < rows * heads; vector++) {
        const float *from = before.data() + vector * dim, *to = x.data() + vector * dim;
        for (int64_t i = 0; i < pairs; i++) {
            const int64_t a = neox ? i : 2 * i, b = neox ? i + pairs : 2 * i + 1;
            const int64_t at = vector / heads * axis_count + axes[static_cast<size_t>(i)];
            const double position = positions[static_cast<size_t>(at)];
            const double angle = frequencies[static_cast<size_t>(i)] * position;
            const double c = std::cos(angle) * magnitude, s = std::sin(angle) * magnitude;
            const double allowed = (std::fabs(from[a]) + std::fabs(from[b])) * 0x1p-21;
            near = near && std::fabs(to[a] - (from[a] * c - from[b] * s)) <= allowed;
            near = near && std::fabs(to[b] - (from[a] * s + from[b] * c)) <= allowed;
        }
        for (int64_t i = 2 * pairs; i < dim; i++) kept = kept && to[i] == from[i];
    }
    check(near, of_width(neox ? "rope of halves" : "rope of neighbours", pairs));
    check(kept, of_width("what rope leaves alone", pairs));
}

void test_gates(int64_t count) {
    Random random(static_cast<uint64_t>(count));
    std::vector<float> gate = random.normals(count), up = random.normals(count), y(static_cast<size_t>(count));
    for (float& each : gate) each *= static_cast<float>(std::exp(6 * random.uniform() - 2));   // some beyond e^88
    swiglu(gate.data(), up.data(), count, y.data());
    bool near = true;
    for (size_t i = 0; i < gate.size(); i++) {
        const double expected = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
        // An exponential good to 2^-23, and four more operations.
        near = near && std::fabs(y[i] - expected) <= std::fabs(expected) * 6 * 0x1p-24 + 1e-35;
    }
    check(near, of_width("swiglu", count));
    geglu(gate.data(), up.data(), count, y.data());
    for (size_t i = 0; i < gate.size(); i++) {
        const double g = gate[i], z = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
        const double expected = g / (1 + std::exp(-2 * z)) * up[i];
        // 2z is rounded four times before its exponential is taken.
        const double allowed = (8 + 4 * std::fabs(std::min(2 * z, 0.0))) * 0x1p-24;
        near = near && std::fabs(y[i] - expected) <= std::fabs(expected) * allowed + 1e-35;
    }
    check(near, of_width("geglu", count));
    reglu(gate.data(), up.data(), count, y.data());
    for (size_t i = 0; i < gate.size(); i++) near = near && y[i] == (gate[i] > 0 ? gate[i] : 0) * up[i];
    check(near, of_width("reglu", count));
    gelu(gate.data(), count, y.data());
    for (size_t i = 0; i < gate.size(); i++) {
        const double g = gate[i], expected = g / 2 * std::erfc(-g / std::sqrt(2.0));
        near = near && std::fabs(y[i] - expected) <= std::fabs(g) * 3e-7 + 1e-35;
    }
    check(near, of_width("gelu", count));
    sigmoid_gate(up.data(), gate.data(), 1, count, false, y.data());
    for (size_t i = 0; i < gate.size(); i++) {
        const double expected = up[i] / (1 + std::exp(-double{gate[i]}));
        near = near && std::fabs(y[i] - expected) <= std::fabs(expected) * 6 * 0x1p-24 + 1e-35;
    }
    check(near, of_width("sigmoid_gate", count));
    softcap(gate.data(), 3.5f, count, y.data());
    for (size_t i = 0; i < gate.size(); i++) near = near && std::fabs(y[i] - 3.5 * std::tanh(gate[i] / 3.5)) <= 1e-6;
    check(near, of_width("softcap", count));
    for (float& each : up) each *= 5;
    row_kernels().clamped_swiglu(gate.data(), up.data(), count, y.data());
    for (size_t i = 0; i < gate.size(); i++) {
        const double g = std::min(7.0, double{gate[i]}), u = std::max(-7.0, std::min(7.0, double{up[i]})) + 1;
        // 1.702 g is rounded before its exponential is taken.
        const double expected = g / (1 + std::exp(-1.702 * g)) * u, allowed = (8 + 2 * std::fabs(g)) * 0x1p-24;
        near = near && std::fabs(y[i] - expected) <= std::fabs(expected) * allowed + 1e-35;
    }
    check(near, of_width("clamped_swiglu", count));
}

void test_temper(int64_t width, int64_t first) {
    Random random(static_cast<uint64_t>(width));
    const std::vector<int32_t> positions = {0, 6, 7, 8, 100000, 10485759};
    const auto rows = static_cast<int64_t>(positions.size());
    const std::vector<float> before = random.normals(rows * width);
    std::vector<float> x = before;
    temper(x.data(), positions.data(), 0.1, 8, first, rows, width);
    bool near = true;
    for (int64_t i = 0; i < rows * width; i++) {
        const int64_t steps = (positions[static_cast<size_t>(i / width)] + first) / 8;
        const double expected = before[static_cast<size_t>(i)] * (1 + 0.1 * std::log(1.0 + double(steps)));
        near = near && std::fabs(x[static_cast<size_t>(i)] - expected) <= std::fabs(expected) * 0x1p-22;
    }
    check(near, of_width("temper", width));
}

// Rounding is to the nearest, ties to even: compare the distances to both neighbours.
bool rounds_to(float value, uint16_t half) {
    if (std::isnan(value)) return (half & 0x7fff) > 0x7c00;
    if (std::signbit(value) != bool(half >> 15)) return false;
    const double magnitude = std::fabs(value);
    const int bits = half & 0x7fff;
    const auto number = [](int b) { return b == 0x7c00 ? 65536.0 : double{half_to_float(static_cast<uint16_t>(b))}; };
    if (bits > 0x7c00) return false;
    if (std::isinf(value)) return bits == 0x7c00;
    const double error = std::fabs(number(bits) - magnitude);
    const double lower = bits > 0 ? std::fabs(number(bits - 1) - magnitude) : INFINITY;
    const double upper = bits < 0x7c00 ? std::fabs(number(bits + 1) - magnitude) : INFINITY;
    if (bits == 0x7c00) return lower >= error;   // infinity also stands for far larger numbers
    return bits % 2 == 0 ? error <= lower && error <= upper : error < lower && error < upper;
}

void test_storing() {
    Random random(1);
    std::vector<float> from = {0.0f, -0.0f, 1.0f, 65504.0f, 65519.996f, 65520.0f, -65536.0f, 1e9f, INFINITY, -INFINITY,
                               NAN, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1.8p-24f, 0x1p-14f, 0x1.ffcp-15f,
                               0x1.002p0f, 0x1.006p0f, -0x1.002p0f, 1e-30f, 0x1.ffep-15f};
    while (from.size() % 23 != 0 || from.size() < 2000) {
        from.push_back(static_cast<float>(random.normal() * std::exp2(40 * random.uniform() - 26)));
    }
    constexpr int64_t width = 23;
    const int64_t rows = static_cast<int64_t>(from.size()) / width;
    std::vector<int32_t> cells;
    for (int64_t row = 0; row < rows; row++) cells.push_back(static_cast<int32_t>(rows - row));
    std::vector<uint16_t> halves(static_cast<size_t>((rows + 1) * width), 0x1234), bfloats = halves;
    std::vector<float> floats(halves.size(), 5);
    store_rows(halves.data(), KVType::f16, cells.data(), from.data(), rows, width);
    store_rows(bfloats.data(), KVType::bf16, cells.data(), from.data(), rows, width);
    store_rows(floats.data(), KVType::f32, cells.data(), from.data(), rows, width);
    bool near = true, same = true, kept = true;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < width; i++) {
            const size_t at = static_cast<size_t>((rows - row) * width + i);
            const float value = from[static_cast<size_t>(row * width + i)];
            near = near && rounds_to(value, halves[at]);
            same = same && (floats[at] == value || std::isnan(value));
            // Seven bits below the leading one, or below that of the smallest normal number.
            const double error = std::fabs(bfloat_to_float(bfloats[at]) - value);
            const double half_step = std::max(std::fabs(value), 0x1p-126f) * 0x1p-8;
            near = near && (!std::isfinite(value) || error <= half_step);
        }
    }
    for (size_t i = 0; i < width; i++) kept = kept && halves[i] == 0x1234 && bfloats[i] == 0x1234 && floats[i] == 5;
    check(near, "rows stored as halves or bfloats are not rounded to nearest");
    check(same, "rows stored as floats changed");
    check(kept, "storing rows touched another cell");
}

// A code is off by half a step, the float16 scale by 2^-11 of itself, and Q4_0's codes end at 7 where 8 may be needed.
void test_quantised_storing(KVType type, int largest_code, double clipped) {
    Random random(2);
    constexpr int64_t rows = 5, width = 96;
    std::vector<float> from = random.normals(rows * width), values(from.size());
    std::fill(from.begin(), from.begin() + kv_block, 0.0f);
    const std::vector<int32_t> cells = {4, 2, 0, 1, 3};
    const int64_t row_bytes = kv_bytes(type, width);
    std::vector<uint8_t> stored(static_cast<size_t>(rows * row_bytes));
    store_rows(stored.data(), type, cells.data(), from.data(), rows, width);
    bool near = true;
    for (int64_t row = 0; row < rows; row++) {
        float* to = values.data() + row * width;
        const float* x = from.data() + row * width;
        const uint8_t* bytes = stored.data() + cells[static_cast<size_t>(row)] * row_bytes;
        dequantize_row(static_cast<FileType>(type), bytes, width, to);
        for (int64_t begin = 0; begin < width; begin += kv_block) {
            double most = 0;
            for (int64_t i = begin; i < begin + kv_block; i++) most = std::max(most, std::fabs(double{x[i]}));
            const double step = most / largest_code;
            for (int64_t i = begin; i < begin + kv_block; i++) {
                const bool at_end = std::fabs(x[i]) > most - step;
                near = near && std::fabs(to[i] - x[i]) <= step * (at_end ? clipped : 0.5) + most * 0x1p-10;
            }
        }
    }
    check(near, "rows stored as blocks of type " + std::to_string(static_cast<int>(type)));
}

}  // namespace

void test_rows() {
    for (const int64_t width : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 300, 1027}) {
        for (const bool with : {false, true}) {
            test_norm(width, with);
            test_layer_norm(width, with);
        }
        test_gates(width);
        test_temper(width, width % 2);
    }
    for (const int64_t pairs : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 48, 64}) {
        for (const bool neox : {false, true}) {
            for (const int64_t axis_count : {1, 3}) test_rope(pairs, neox, axis_count);
        }
    }
    test_storing();
    test_quantised_storing(KVType::q8_0, 127, 0.5);
    test_quantised_storing(KVType::q4_0, 8, 1);
}

}  // namespace puna::test
