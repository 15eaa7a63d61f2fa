// Operations on rows of floats: norms, rotation, gating, storing.
#pragma once
#include <cstdint>

#include "core/sets.h"
#include "kv/kv.h"

namespace puna {

struct RowKernels {
    // y = x / sqrt(mean(x^2) + eps) * weight; with `residual`, x + residual replaces x and is stored in `sum`.
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
    // y = g * sigmoid(1.702 g) * (u + 1), g = min(gate, 7), u = up clamped to [-7, 7]: gpt-oss's gate.
    void (*clamped_swiglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = gelu(gate) * up, GELU approximated with tanh.
    void (*geglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = max(gate, 0) * up.
    void (*reglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = gelu(x), exactly: x times the normal distribution's share below x.
    void (*gelu)(const float* x, int64_t count, float* y);
    // y = max(x, 0)^2.
    void (*squared_relu)(const float* x, int64_t count, float* y);
    // y = x * sigmoid(gate).
    void (*sigmoid_gate)(const float* x, const float* gate, int64_t count, float* y);
    // y = cap * tanh(x / cap).
    void (*softcap)(const float* x, float cap, int64_t count, float* y);
    // Stores numbers in a cache; whole blocks for quantised types.
    void (*store)(KVType type, const float* from, void* to, int64_t count);
};

// For the CPU level in use, unless another is given.
PUNA_DECLARE_KERNELS(RowKernels, row_kernels);

// Whole batches, shared among the threads. Arrays are contiguous; `residual` and `sum` may both be null. Row r uses row
// r % groups of weight and bias [groups, width].
void rms_norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows, int64_t groups,
              int64_t width, float* sum, float* y);
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t rows, int64_t groups,
                int64_t width, float* y);
// A row has `axis_count` positions, and pair i rotates by the axes[i]-th; null axes: one position rotates all.
void rope(float* x, const int32_t* positions, const int32_t* axes, const float* frequencies, float magnitude, bool neox,
          int64_t rows, int64_t heads, int64_t dim, int64_t pairs, int64_t axis_count);
void swiglu(const float* gate, const float* up, int64_t count, float* y);
void clamped_swiglu(const float* gate, const float* up, int64_t count, float* y);
void geglu(const float* gate, const float* up, int64_t count, float* y);
void reglu(const float* gate, const float* up, int64_t count, float* y);
void gelu(const float* x, int64_t count, float* y);
void squared_relu(const float* x, int64_t count, float* y);
// y = scale * ln(1 + e^x) of x [rows, width], and 1 / (1 + e^-x), for the small arrays of heads' gates.
void softplus(const float* x, const float* scale, int64_t rows, int64_t width, float* y);
void sigmoid(const float* x, int64_t count, float* y);
// y = sign(x) sqrt(max(|x|, floor)), which is 0 for 0, for the same.
void signed_root(const float* x, float floor, int64_t count, float* y);
// y = x * sigmoid(gate) for x [rows, width]; a row has `width` gates, or a single one.
void sigmoid_gate(const float* x, const float* gate, int64_t rows, int64_t width, bool one_gate, float* y);
void softcap(const float* x, float cap, int64_t count, float* y);
// Multiplies each row in place by 1 + scale * ln(1 + floor((position + first) / floor_scale)).
void temper(float* x, const int32_t* positions, double scale, double floor_scale, int64_t first, int64_t rows,
            int64_t width);
// y = a + b, a + number, a * b and a * factor, bit for bit like numpy.
void add(const float* a, const float* b, int64_t count, float* y);
void offset(const float* a, float number, int64_t count, float* y);
void multiply(const float* a, const float* b, int64_t count, float* y);
void scale(const float* a, float factor, int64_t count, float* y);
// y = a * b, where b [width] is the same for each row of a [rows, width].
void multiply_rows(const float* a, const float* b, int64_t rows, int64_t width, float* y);
// Part p of the columns of x [rows, parts * width] becomes y[p] [rows, width].
void split(const float* x, int64_t rows, int64_t parts, int64_t width, float* const* y);
// Rows of the arrays x[i] [rows, widths[i]] side by side: y [rows, the sum of widths].
void join(const float* const* x, const int64_t* widths, int64_t count, int64_t rows, float* y);
// y[m] = the sum over n of mixture [rows, outputs, inputs] at (m, n) times x[n]; x[n] and y[m] [rows, width].
void mix(const float* const* x, const float* mixture, int64_t inputs, int64_t outputs, int64_t rows, int64_t width,
         float* const* y);
// Makes matrices [count, count] of logits whose rows and columns sum to nearly 1: entry (i, j) of source j and result i
// is the softmax over the results, plus eps; then sources and results, in turn, are divided by eps + their sums.
void balance(const float* logits, float eps, int64_t rounds, int64_t rows, int64_t count, float* y);
// Scales rows of x to the root mean square of the rows of `like`; their own counts as at least sqrt(floor).
void match_rms(const float* x, const float* like, float floor, int64_t rows, int64_t width, float* y);
// y = max(x - threshold, 0), the threshold being the row's mean plus `deviations` times its standard deviation.
void above(const float* x, float deviations, int64_t rows, int64_t width, float* y);

void store_rows(void* target, KVType type, const int32_t* cells, const float* from, int64_t rows, int64_t width);

}  // namespace puna
