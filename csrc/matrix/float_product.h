// Products of F32, F16 and BF16 weights with float32 activations: a fused multiply-add per column, R rows and token.
//
// Every (row, token) is one chain of additions in the order of the columns, restarted every 256: the same in every
// tile. A tile keeps enough chains in flight to hide the latency of an addition.
#pragma once
#include "matrix/quantized_product.h"

namespace puna {
namespace {

template <class Lanes, Layout layout>
PUNA_INLINE typename Lanes::Floats weights_at(const uint8_t* p) {
    if constexpr (layout == Layout::f32) return Lanes::load_floats(p);
    else if constexpr (layout == Layout::f16) return Lanes::load_halves(p);
    else return Lanes::load_bfloats(p);
}

template <class Lanes, Layout layout, int T, int G>
PUNA_INLINE void float_groups(const uint8_t* weights, int64_t stride, int64_t columns, const void* const* x,
                              float* const* y, int64_t group, PrefetchDistance distance) {
    constexpr int bytes = layout == Layout::f32 ? 4 : 2;
    const PrefetchDistance ahead = distance.shared_by(G);
    typename Lanes::Floats totals[G][T];
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < T; t++) totals[g][t] = Lanes::splat(0.0f);
    }
    for (int64_t begin = 0; begin < columns; begin += chunk_columns) {
        const int64_t end = columns - begin < chunk_columns ? columns : begin + chunk_columns;
        typename Lanes::Floats sums[G][T];
        for (int g = 0; g < G; g++) {
            for (int t = 0; t < T; t++) sums[g][t] = Lanes::splat(0.0f);
        }
        for (int64_t k = begin; k < end; k++) {
            typename Lanes::Floats w[G];
            for (int g = 0; g < G; g++) {
                const uint8_t* p = weights + g * stride + k * Lanes::rows * bytes;
                w[g] = weights_at<Lanes, layout>(p);
                prefetch(p, 1, ahead);
            }
            for (int t = 0; t < T; t++) {
                const auto value = Lanes::splat(static_cast<const float*>(x[t])[k]);
                for (int g = 0; g < G; g++) sums[g][t] = Lanes::mul_add(w[g], value, sums[g][t]);
            }
        }
        for (int g = 0; g < G; g++) {
            for (int t = 0; t < T; t++) totals[g][t] = Lanes::add(totals[g][t], sums[g][t]);
        }
    }
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < T; t++) Lanes::store(y[t] + (group + g) * Lanes::rows, totals[g][t]);
    }
}

template <class Lanes, Layout layout, int T>
void float_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                   int64_t, float* const* y, PrefetchDistance distance) {
    constexpr int G = T == 1 ? 4 : 2;
    int64_t group = 0;
    for (; group + G <= groups; group += G) {
        float_groups<Lanes, layout, T, G>(weights + group * stride, stride, columns, x, y, group, distance);
    }
    for (; group < groups; group++) {
        float_groups<Lanes, layout, T, 1>(weights + group * stride, stride, columns, x, y, group, distance);
    }
}

template <class Lanes, Layout layout, int... T>
void set_float_product(MatrixKernels& kernels, std::integer_sequence<int, T...>) {
    constexpr int l = static_cast<int>(layout);
    kernels.tile[l] = sizeof...(T);
    ((kernels.product[l][T] = float_product<Lanes, layout, T + 1>), ...);
}

// Fills in the table's products of the given layouts.
template <class Lanes, Layout... layouts>
void set_float_products(MatrixKernels& kernels) {
    constexpr auto tiles = std::make_integer_sequence<int, Lanes::float_tile>();
    (set_float_product<Lanes, layouts>(kernels, tiles), ...);
}

}  // namespace
}  // namespace puna
