// Operations on rows of floats: norms, rotation, gating, storing.
#pragma once
#include <cstdint>

#include "core/sets.h"
#include "kv/kv.h"

namespace puna {

struct RowKernels {
    // y = x / sqrt(mean(x^2) + eps) * weight; with `residual`, x + residual takes the place of x and goes to `sum`.
    void (*rms_norm)(const float* x, const float* residual, const float* weight, float eps, int64_t width, float* sum,
                     float* y);
    // y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias; `bias` may be null.
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int64_t width, float* y);
    // Cosines and sines of positions[i] * frequencies[i], times magnitude.
    void (*rope_table)(const int32_t* positions, const float* frequencies, float magnitude, int64_t pairs,
                       float* cosines, float* sines);
    // Rotates the pairs of one head in place: (2i, 2i + 1), or (i, i + pairs) when `neox`.
    void (*rotate)(float* head, const float* cosines, const float* sines, int64_t pairs, bool neox);
    // y = gate * sigmoid(gate) * up.
    void (*swiglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = g * sigmoid(1.702 g) * (u + 1), g being gate but at most 7, u being up within -7 and 7: gpt-oss's gate.
    void (*clamped_swiglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = gelu(gate) * up, GELU by its approximation with tanh.
    void (*geglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = gelu(x), exactly: x times the normal distribution's share below x.
    void (*gelu)(const float* x, int64_t count, float* y);
    // y = max(x, 0)^2.
    void (*squared_relu)(const float* x, int64_t count, float* y);
    // y = x * sigmoid(gate).
    void (*sigmoid_gate)(const float* x, const float* gate, int64_t count, float* y);
    // y = cap * tanh(x / cap).
    void (*softcap)(const float* x, float cap, int64_t count, float* y);
    // Stores numbers of a cache; of its quantised types whole blocks.
    void (*store)(KVType type, const float* from, void* to, int64_t count);
};

// Of the CPU level in use, unless another is given.
PUNA_DECLARE_KERNELS(RowKernels, row_kernels);

// Whole batches, shared among the threads. Arrays are contiguous; `residual` and `sum` may be null together. Row r is
// weighed by row r % groups of weight and bias [groups, width].
void rms_norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows, int64_t groups,
              int64_t width, float* sum, float* y);
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t rows, int64_t groups,
                int64_t width, float* y);
// A row has `axis_count` positions, of which the axes[i]-th rotates pair i; null axes: one position rotates all.
void rope(float* x, const int32_t* positions, const int32_t* axes, const float* frequencies, float magnitude, bool neox,
          int64_t rows, int64_t heads, int64_t dim, int64_t pairs, int64_t axis_count);
void swiglu(const float* gate, const float* up, int64_t count, float* y);
void clamped_swiglu(const float* gate, const float* up, int64_t count, float* y);
void geglu(const float* gate, const float* up, int64_t count, float* y);
void gelu(const float* x, int64_t count, float* y);
void squared_relu(const float* x, int64_t count, float* y);
// y = scale * ln(1 + e^x) of x [rows, width], and 1 / (1 + e^-x), for the few numbers that the gates of heads are.
void softplus(const float* x, const float* scale, int64_t rows, int64_t width, float* y);
void sigmoid(const float* x, int64_t count, float* y);
// Of x [rows, width]; a row has `width` gates, or one for all of it.
void sigmoid_gate(const float* x, const float* gate, int64_t rows, int64_t width, bool one_gate, float* y);
void softcap(const float* x, float cap, int64_t count, float* y);
// Multiplies each row in place by 1 + scale * ln(1 + floor((position + first) / floor_scale)).
void temper(float* x, const int32_t* positions, double scale, double floor_scale, int64_t first, int64_t rows,
            int64_t width);
// y = a + b, a * b and a * factor, to the bit what numpy gives.
void add(const float* a, const float* b, int64_t count, float* y);
void multiply(const float* a, const float* b, int64_t count, float* y);
void scale(const float* a, float factor, int64_t count, float* y);
// y = a * b, b [width] being the same for each row of a [rows, width].
void multiply_rows(const float* a, const float* b, int64_t rows, int64_t width, float* y);
// Part p of the columns of x [rows, parts * width] becomes y[p] [rows, width].
void split(const float* x, int64_t rows, int64_t parts, int64_t width, float* const* y);
// Rows of the arrays x[i] [rows, widths[i]] side by side: y [rows, the sum of widths].
void join(const float* const* x, const int64_t* widths, int64_t count, int64_t rows, float* y);
// y[m] = the sum over n of mixture [rows, outputs, inputs] at (m, n) times x[n]; x[n] and y[m] [rows, width].
void mix(const float* const* x, const float* mixture, int64_t inputs, int64_t outputs, int64_t rows, int64_t width,
         float* const* y);
// Rows of x with the root mean square that those of `like` have, their own being taken as at least sqrt(floor).
void match_rms(const float* x, const float* like, float floor, int64_t rows, int64_t width, float* y);
// What values have above the mean of their row plus `deviations` times its standard deviation, or 0.
void above(const float* x, float deviations, int64_t rows, int64_t width, float* y);

void store_rows(void* target, KVType type, const int32_t* cells, const float* from, int64_t rows, int64_t width);

}  // namespace puna
