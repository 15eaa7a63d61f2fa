// Operations on rows of floats: norms, rotation, gating, storing.
#pragma once
#include <cstdint>

#include "core/cpu.h"
#include "kv.h"

namespace puna {

struct RowKernels {
    // y = x / sqrt(mean(x^2) + eps) * weight; with `residual`, x + residual takes the place of x and goes to `sum`.
    void (*rms_norm)(const float* x, const float* residual, const float* weight, float eps, int64_t width, float* sum,
                     float* y);
    // Cosines and sines of positions[i] * frequencies[i], times magnitude.
    void (*rope_table)(const int32_t* positions, const float* frequencies, float magnitude, int64_t pairs,
                       float* cosines, float* sines);
    // Turns the pairs of one head in place: (2i, 2i + 1), or (i, i + pairs) when `neox`.
    void (*rotate)(float* head, const float* cosines, const float* sines, int64_t pairs, bool neox);
    // y = gate * sigmoid(gate) * up.
    void (*swiglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = g * sigmoid(1.702 g) * (u + 1), g being gate but at most 7, u being up within -7 and 7: gpt-oss's gate.
    void (*clamped_swiglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = gelu(gate) * up, GELU by its approximation with tanh.
    void (*geglu)(const float* gate, const float* up, int64_t count, float* y);
    // y = cap * tanh(x / cap).
    void (*softcap)(const float* x, float cap, int64_t count, float* y);
    // Stores numbers of a cache; of its quantised types whole blocks.
    void (*store)(KVType type, const float* from, void* to, int64_t count);
};

// Those of the CPU level in use.
const RowKernels& row_kernels();

extern const RowKernels rows_portable;
#if defined(__x86_64__)
extern const RowKernels rows_avx2, rows_avx512;
#elif defined(__aarch64__)
extern const RowKernels rows_neon;
#endif

// Whole batches, shared out among the threads. Arrays are contiguous; `residual` and `sum` may be null together.
void rms_norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows, int64_t width,
              float* sum, float* y);
// A row has `axis_count` positions, of which the axes[i]-th turns pair i; null axes: one position turns all.
void rope(float* x, const int32_t* positions, const int32_t* axes, const float* frequencies, float magnitude, bool neox,
          int64_t rows, int64_t heads, int64_t dim, int64_t pairs, int64_t axis_count);
void swiglu(const float* gate, const float* up, int64_t count, float* y);
void geglu(const float* gate, const float* up, int64_t count, float* y);
void softcap(const float* x, float cap, int64_t count, float* y);
// Multiplies each row in place by 1 + scale * ln(1 + floor((position + 1) / floor_scale)).
void temper(float* x, const int32_t* positions, double scale, double floor_scale, int64_t rows, int64_t width);
// y = a + b, a * b and a * factor, to the bit what torch gives.
void add(const float* a, const float* b, int64_t count, float* y);
void multiply(const float* a, const float* b, int64_t count, float* y);
void scale(const float* a, float factor, int64_t count, float* y);
void store_rows(void* target, KVType type, const int32_t* cells, const float* from, int64_t rows, int64_t width);

}  // namespace puna
