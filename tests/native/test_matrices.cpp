// Products of random blocks of every file type, against double-precision products of their decoded values.
//
// The bound is not fitted: an activation is rounded by at most half a step, the step being the largest magnitude of
// its block (256 or 32 columns) over 127, so a product is off by at most half a step times the sum of |w| over the
// block, plus the float32 rounding of the sums; where 16-bit floats are multiplied as integers, both sides are rounded,
// in blocks of 128. The usual error is far smaller: rounding errors are independent and mostly cancel, which a bias or
// a lost term would not, so the mean square of the errors is compared with its expected value.
#include <algorithm>
#include <cstring>

#include "check.h"
#include "core/pool.h"
#include "matrix/linear.h"
#include "matrix/product.h"

namespace puna::test {
namespace {

struct Kind {
    const char* name;
    FileType type;
    std::vector<int> factors;   // byte offsets of a block's float16 factors
};

const std::vector<Kind>& kinds() {
    static const std::vector<Kind> all = {
        {"F32", FileType::f32, {}}, {"F16", FileType::f16, {}}, {"BF16", FileType::bf16, {}},
        {"Q4_0", FileType::q4_0, {0}}, {"Q4_1", FileType::q4_1, {0, 2}}, {"Q5_0", FileType::q5_0, {0}},
        {"Q5_1", FileType::q5_1, {0, 2}}, {"Q8_0", FileType::q8_0, {0}}, {"Q2_K", FileType::q2_k, {80, 82}},
        {"Q3_K", FileType::q3_k, {108}}, {"Q4_K", FileType::q4_k, {0, 2}}, {"Q5_K", FileType::q5_k, {0, 2}},
        {"Q6_K", FileType::q6_k, {208}}, {"IQ4_NL", FileType::iq4_nl, {0}}, {"IQ4_XS", FileType::iq4_xs, {0}},
        {"TQ1_0", FileType::tq1_0, {52}}, {"TQ2_0", FileType::tq2_0, {64}}, {"MXFP4", FileType::mxfp4, {}},
        {"IQ2_XXS", FileType::iq2_xxs, {0}}, {"IQ2_XS", FileType::iq2_xs, {0}}, {"IQ2_S", FileType::iq2_s, {0}},
        {"IQ3_XXS", FileType::iq3_xxs, {0}}, {"IQ3_S", FileType::iq3_s, {0}}, {"IQ1_S", FileType::iq1_s, {0}},
        {"IQ1_M", FileType::iq1_m, {}},
    };
    return all;
}

bool plain_numbers(FileType type) { return block_type(type)->elements == 1; }

enum class Bits { random, extreme };

// A matrix's bytes as in a file: plain numbers in (-2, 2), or blocks with factors near 0.01 whose other bits are
// random, or identical along a row, so that the largest numbers of either sign coincide.
std::vector<uint8_t> bytes_of(const Kind& kind, Bits bits, int64_t rows, int64_t columns, Random& random) {
    constexpr uint8_t patterns[] = {0x00, 0xff, 0x80, 0x7f, 0x88, 0x77};
    const BlockType& of = *block_type(kind.type);
    const size_t row_bytes = static_cast<size_t>(columns / of.elements * of.bytes);
    std::vector<uint8_t> bytes(static_cast<size_t>(rows) * row_bytes);
    for (size_t i = 0; i < bytes.size(); i++) {
        bytes[i] = bits == Bits::random ? static_cast<uint8_t>(random.bits()) : patterns[i / row_bytes % 6];
    }
    for (uint8_t* block = bytes.data(); block < bytes.data() + bytes.size(); block += of.bytes) {
        if (kind.type == FileType::f32) {
            const float value = static_cast<float>(4 * random.uniform() - 2);
            std::memcpy(block, &value, 4);
        } else if (kind.type == FileType::f16 || kind.type == FileType::bf16) {
            block[1] &= 0xbf;   // the highest bit of the exponent
        } else if (kind.type == FileType::mxfp4) {
            block[0] = static_cast<uint8_t>(115 + random.below(15));
        }
        if (kind.type == FileType::iq1_m) {   // its float16 factor is spread over the upper halves of four bytes
            block[55] = static_cast<uint8_t>(0x20 | (block[55] & 0x8f));
            block[53] &= 0x3f;
        }
        for (const int at : kind.factors) {   // float16 from 2^-7 to 2^-6, of either sign
            block[at + 1] = static_cast<uint8_t>(0x20 | (block[at + 1] & 0x83));
        }
    }
    return bytes;
}

struct Matrix {
    std::vector<uint8_t> bytes;
    PackedMatrix packed;
    std::vector<float> values;   // [rows, columns]
    std::vector<float> terms;    // magnitude of the terms that a value is the sum of

    Matrix(const Kind& kind, Bits bits, int64_t rows, int64_t columns, Random& random)
        : bytes(bytes_of(kind, bits, rows, columns, random)),
          packed(bytes.data(), bytes.size(), kind.type, rows, columns),
          values(static_cast<size_t>(rows * columns)),
          terms(values.size()) {
        const BlockType& of = *block_type(kind.type);
        const int64_t row_bytes = static_cast<int64_t>(bytes.size()) / rows;
        for (int64_t r = 0; r < rows; r++) {
            dequantize_row(kind.type, bytes.data() + r * row_bytes, columns, values.data() + r * columns);
        }
        Block block;
        for (size_t i = 0; i < values.size(); i++) {
            if (!of.decode) {
                terms[i] = std::fabs(values[i]);
                continue;
            }
            const size_t elements = static_cast<size_t>(of.elements), at = i % elements;
            if (at == 0) of.decode(bytes.data() + i / elements * static_cast<size_t>(of.bytes), block);
            // Numbers may be stored with an offset that makes them positive.
            const float excess = static_cast<float>(format_of(packed.layout()).excess);
            terms[i] = std::fabs(block.scale[at / 16]) * (std::fabs(float(block.q[at])) + excess) +
                       std::fabs(block.offset[at / 16]);
        }
    }
};

std::vector<float> multiply(const PackedMatrix& matrix, const float* x, int64_t tokens, const float* bias = nullptr) {
    std::vector<float> y(static_cast<size_t>(tokens * matrix.rows()));
    linear({{&matrix, bias, y.data()}}, x, tokens, matrix.columns());
    return y;
}

bool same_bits(const float* a, const float* b, int64_t count) {
    return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

// Error bound of products of 16-bit floats computed as integers.
double word_bound(const float* x, const float* w, int64_t columns) {
    double bound = 0;
    for (int64_t begin = 0; begin < columns; begin += WordBlock::columns) {
        const int64_t end = std::min(columns, begin + WordBlock::columns);
        double most[2] = {}, sums[2] = {}, squares[2] = {}, steps[2];
        for (int64_t k = begin; k < end; k++) {
            const double values[] = {std::fabs(x[k]), std::fabs(w[k])};
            for (int i = 0; i < 2; i++) {
                most[i] = std::max(most[i], values[i]), sums[i] += values[i], squares[i] += values[i] * values[i];
            }
        }
        for (int i = 0; i < 2; i++) steps[i] = std::max(most[i] / largest_word, std::sqrt(squares[i]) / largest_word_norm);
        steps[1] *= 2;   // the weights' step is a power of two
        bound += steps[0] / 2 * sums[1] + steps[1] / 2 * sums[0] + steps[0] * steps[1] / 4 * double(end - begin);
    }
    return bound;
}

void check_values(const Matrix& matrix, const float* x, int64_t tokens, const float* y, const std::string& name) {
    const int64_t rows = matrix.packed.rows(), columns = matrix.packed.columns();
    const Scaling scaling = scaling_of(matrix.packed.layout());
    const int64_t size = scaling == Scaling::per_32 ? 32 : chunk_columns;
    const bool words = form_of(matrix.packed) == Form::words;
    double worst = 0, squares = 0, expected_squares = 0;
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t r = 0; r < rows; r++) {
            double product = 0, magnitude = 0, bound = 0;
            for (int64_t begin = 0; begin < columns; begin += size) {
                double largest = 0, weights = 0, squared_weights = 0;
                for (int64_t k = begin; k < std::min(columns, begin + size); k++) {
                    const double a = x[t * columns + k], w = matrix.values[static_cast<size_t>(r * columns + k)];
                    product += a * w;
                    magnitude += std::fabs(a) * matrix.terms[static_cast<size_t>(r * columns + k)];
                    largest = std::max(largest, std::fabs(a));
                    weights += std::fabs(w);
                    squared_weights += w * w;
                }
                if (scaling == Scaling::none) continue;
                const double step = largest / 127;
                bound += step / 2 * weights * 1.001;
                expected_squares += step * step / 12 * squared_weights;
            }
            if (words) bound += word_bound(x + t * columns, matrix.values.data() + r * columns, columns);
            bound += magnitude * (256 + static_cast<double>(columns) / 256 + 8) * 0x1p-24;
            const double error = std::fabs(y[t * rows + r] - product);
            worst = std::isnan(error) ? INFINITY : std::max(worst, error / bound);
            squares += error * error;
        }
    }
    check(worst <= 1, name + ": " + std::to_string(worst) + " of the error that rounding explains");
    if (scaling == Scaling::none || rows * tokens < 400) return;
    const double ratio = std::sqrt(squares / expected_squares);
    check(ratio < 1.2, name + ": errors are " + std::to_string(ratio) + " times as large as rounding makes them");
}

void check_unpacking(const Matrix& matrix, const std::string& name) {
    std::vector<float> row(static_cast<size_t>(matrix.packed.columns()));
    bool same = true;
    for (int64_t r = 0; r < matrix.packed.rows(); r++) {
        matrix.packed.unpack_row(r, row.data());
        same = same && same_bits(row.data(), matrix.values.data() + r * matrix.packed.columns(),
                                 matrix.packed.columns());
    }
    check(same, name + ": rows come back changed");
}

void check_not_finite(const Matrix& matrix, std::vector<float> x, const std::vector<float>& clean, float bad,
                      const std::string& name) {
    const int64_t rows = matrix.packed.rows(), columns = matrix.packed.columns();
    const int64_t tokens = static_cast<int64_t>(x.size()) / columns, spoiled = tokens / 2;
    x[static_cast<size_t>(spoiled * columns + columns / 2)] = bad;
    const std::vector<float> y = multiply(matrix.packed, x.data(), tokens);
    for (int64_t t = 0; t < tokens; t++) {
        if (t != spoiled) {
            check(same_bits(&y[static_cast<size_t>(t * rows)], &clean[static_cast<size_t>(t * rows)], rows),
                  name + ": a value that is not finite changes another token");
            continue;
        }
        bool seen = true;
        for (int64_t r = 0; r < rows; r++) {
            const float value = y[static_cast<size_t>(t * rows + r)];
            const bool quantised = scaling_of(matrix.packed.layout()) != Scaling::none;
            seen = seen && (quantised || std::isnan(bad) ? std::isnan(value) : !std::isfinite(value));
        }
        check(seen, name + ": a value that is not finite is lost");
    }
}

// Sums as close to overflow as possible, of few tokens and of as many as have kernels of their own.
void test_extremes(const Kind& kind) {
    constexpr int64_t rows = 53, columns = 512, most = 98;
    Random random(static_cast<uint64_t>(kind.type));
    const Matrix matrix(kind, Bits::extreme, rows, columns, random);
    std::vector<float> x;
    for (int64_t i = 0; i < most * columns; i++) {
        const bool negative[] = {false, true, i % 2 == 1, random.bits() % 2 == 1};
        x.push_back(negative[i / columns % 4] ? -1.0f : 1.0f);
    }
    for (const int64_t tokens : {int64_t{4}, most}) {
        const std::vector<float> y = multiply(matrix.packed, x.data(), tokens);
        check_values(matrix, x.data(), tokens, y.data(), std::string(kind.name) + " of extreme numbers");
    }
}

void test_kind(const Kind& kind) {
    const bool plain = plain_numbers(kind.type);
    const int step = plain ? 1 : block_type(kind.type)->elements;
    // An odd number of rows, several groups of rows, and a partial chunk of 256 columns where the type allows one.
    const int64_t shapes[][2] = {{1, step}, {13, plain ? 300 : step == 32 ? 544 : 768}, {67, 512}};
    constexpr int most = 98;
    for (const auto& [rows, columns] : shapes) {
        const std::string name = std::string(kind.name) + " " + std::to_string(rows) + "x" + std::to_string(columns);
        Random random(static_cast<uint64_t>(kind.type) * 1000 + static_cast<uint64_t>(rows));
        const Matrix matrix(kind, Bits::random, rows, columns, random);
        std::vector<float> x = random.normals(most * columns);
        for (int64_t k = 0; k < columns; k += 7) {   // some columns are far larger, as in real models
            for (int64_t t = 0; t < most; t++) x[static_cast<size_t>(t * columns + k)] *= 10;
        }
        check_unpacking(matrix, name);
        const std::vector<float> together = multiply(matrix.packed, x.data(), most);
        check_values(matrix, x.data(), most, together.data(), name);
        for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 97}) {
            const int first = most - tokens;   // vary the place in a tile
            const std::vector<float> alone = multiply(matrix.packed, x.data() + first * columns, tokens);
            check(same_bits(alone.data(), together.data() + first * rows, tokens * rows),
                  name + ": another result with " + std::to_string(tokens) + " tokens");
        }
        set_thread_count(1);
        check(multiply(matrix.packed, x.data(), most) == together, name + ": another result with one thread");
        set_thread_count(2);
        if (rows != 13) continue;
        x.resize(static_cast<size_t>(9 * columns));
        for (const float bad : {NAN, INFINITY, -INFINITY}) check_not_finite(matrix, x, together, bad, name);
        const std::vector<float> bias = random.normals(rows), y = multiply(matrix.packed, x.data(), 9, bias.data());
        bool added = true;
        for (size_t i = 0; i < y.size(); i++) added = added && y[i] == together[i] + bias[i % bias.size()];
        check(added, name + ": the bias is not added");
    }
}

}  // namespace

void test_matrices() {
    for (const Kind& kind : kinds()) {
        test_kind(kind);
        if (!plain_numbers(kind.type)) test_extremes(kind);
    }
}

}  // namespace puna::test
