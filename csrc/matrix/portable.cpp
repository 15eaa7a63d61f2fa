// Matrix products in plain C++, for CPUs without a faster version: each chunk of a row is converted to 8-bit numbers
// once and multiplied by all tokens of the tile.
#include <cmath>
#include <cstring>
#include <utility>

#include "matrix/kernels.h"
#include "matrix/pack.h"
#include "matrix/quantize.h"
#include "matrix/sets.h"
#include "vector/half.h"

namespace puna {
namespace {

constexpr int R = 8;
constexpr int tile = 4;

struct Vectors {
    struct Bytes {
        int8_t q[32];
    };

    static uint32_t largest_bits(const float* x, int n) {
        uint32_t most = 0;
        for (int i = 0; i < n; i++) {
            const uint32_t bits = float_to_bits(x[i]) & 0x7fffffff;
            most = bits > most ? bits : most;
        }
        return most;
    }

    static void largest_of_32s(const float* x, uint32_t* bits) {
        for (int i = 0; i < 8; i++) bits[i] = largest_bits(x + 32 * i, 32);
    }

    static Bytes rounded(const float* x, float factor) {
        Bytes bytes;
        for (int i = 0; i < 32; i++) bytes.q[i] = static_cast<int8_t>(std::nearbyint(x[i] * factor));
        return bytes;
    }

    static Bytes zeros() { return {}; }

    static void store(const Bytes& bytes, int8_t* to) { std::memcpy(to, bytes.q, sizeof bytes.q); }

    static void add_up(const int8_t* q, int32_t* sums) {
        for (int i = 0; i < 16; i++) {
            sums[i] = 0;
            for (int j = 0; j < 16; j++) sums[i] += q[16 * i + j];
        }
    }
};

template <Layout layout>
void quantized_product(const uint8_t* weights, int64_t columns, int tokens, const void* const* x, int64_t step,
                       float* const* y) {
    constexpr int scaled = scaling_of(layout) == Scaling::per_256 ? 256 : 32;
    float sums[tile][R] = {};
    for (int64_t k = 0; k < columns; k += chunk_columns) {
        const int64_t n = columns - k < chunk_columns ? columns - k : chunk_columns;
        const uint8_t* chunk = weights + packed_bytes(layout, R, k);
        for (int r = 0; r < R; r++) {
            Block block;
            unpack_chunk(layout, R, chunk, n, r, block);
            for (int t = 0; t < tokens; t++) {
                const char* at = static_cast<const char*>(x[t]) + k / chunk_columns * step;
                const auto& a = *reinterpret_cast<const ActivationBlock<scaled>*>(at);
                for (int g = 0; g < n / 16; g++) {
                    int dot = 0;
                    for (int i = 0; i < 16; i++) dot += block.q[16 * g + i] * a.q[16 * g + i];
                    const float part = block.scale[g] * static_cast<float>(dot) +
                                       block.offset[g] * static_cast<float>(a.sums16[g]);
                    sums[t][r] += a.d[16 * g / scaled] * part;
                }
            }
        }
    }
    for (int t = 0; t < tokens; t++) std::memcpy(y[t], sums[t], sizeof sums[t]);
}

template <Layout layout>
float number(const uint8_t* p, int64_t i) {
    if (layout == Layout::f32) return reinterpret_cast<const float*>(p)[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(p)[i];
    return layout == Layout::f16 ? half_to_float(bits) : bfloat_to_float(bits);
}

template <Layout layout>
void float_product(const uint8_t* weights, int64_t columns, int tokens, const void* const* x, float* const* y) {
    float totals[tile][R] = {};
    for (int64_t begin = 0; begin < columns; begin += chunk_columns) {
        const int64_t end = columns - begin < chunk_columns ? columns : begin + chunk_columns;
        float sums[tile][R] = {};   // short sums first: long ones lose low bits
        for (int64_t k = begin; k < end; k++) {
            float w[R];
            for (int r = 0; r < R; r++) w[r] = number<layout>(weights, k * R + r);
            for (int t = 0; t < tokens; t++) {
                const float value = static_cast<const float*>(x[t])[k];
                for (int r = 0; r < R; r++) sums[t][r] += w[r] * value;
            }
        }
        for (int t = 0; t < tokens; t++) {
            for (int r = 0; r < R; r++) totals[t][r] += sums[t][r];
        }
    }
    for (int t = 0; t < tokens; t++) std::memcpy(y[t], totals[t], sizeof totals[t]);
}

template <Layout layout, int T>
void product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
             int64_t step, float* const* y, PrefetchDistance) {
    for (int64_t g = 0; g < groups; g++, weights += stride) {
        float* out[T];
        for (int t = 0; t < T; t++) out[t] = y[t] + g * R;
        if constexpr (scaling_of(layout) == Scaling::none) float_product<layout>(weights, columns, T, x, out);
        else quantized_product<layout>(weights, columns, T, x, step, out);
    }
}

template <Layout layout, int... T>
void fill(MatrixKernels& kernels, std::integer_sequence<int, T...>) {
    const int l = static_cast<int>(layout);
    kernels.tile[l] = sizeof...(T);
    ((kernels.product[l][T] = product<layout, T + 1>), ...);
}

template <int... L>
void fill_all(MatrixKernels& kernels, std::integer_sequence<int, L...>) {
    (fill<static_cast<Layout>(L)>(kernels, std::make_integer_sequence<int, tile>()), ...);
}

}  // namespace

void portable::add_all(MatrixKernels& kernels) {
    set_quantize<Vectors>(kernels);
    fill_all(kernels, std::make_integer_sequence<int, layout_count>());
}

}  // namespace puna
