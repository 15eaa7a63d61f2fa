#include "rows/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/pool.h"

namespace puna {
namespace {

// Floats that are worth handing to another thread.
constexpr int64_t floats_per_task = 16384;

int64_t rows_per_task(int64_t width) { return floats_per_task / (width + 1) + 1; }

}  // namespace

PUNA_DEFINE_CHOICE(RowKernels, row_kernels)

void rms_norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows, int64_t width,
              float* sum, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t at = row * width;
            kernels.rms_norm(x + at, residual ? residual + at : nullptr, weight, eps, width,
                             sum ? sum + at : nullptr, y + at);
        }
    });
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t rows, int64_t width,
                float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            kernels.layer_norm(x + row * width, weight, bias, eps, width, y + row * width);
        }
    });
}

void rope(float* x, const int32_t* positions, const int32_t* axes, const float* frequencies, float magnitude, bool neox,
          int64_t rows, int64_t heads, int64_t dim, int64_t pairs, int64_t axis_count) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(rows, rows_per_task(heads * dim), [&](int64_t begin, int64_t end, int) {
        thread_local std::vector<float> table;
        thread_local std::vector<int32_t> of_pairs;
        table.resize(2 * pairs);
        of_pairs.resize(pairs);
        float *cosines = table.data(), *sines = cosines + pairs;
        int32_t* position_of = of_pairs.data();
        for (int64_t row = begin; row < end; row++) {
            const int32_t* at = positions + row * axis_count;
            if (axes) {
                for (int64_t i = 0; i < pairs; i++) position_of[i] = at[axes[i]];
            } else {
                std::fill_n(position_of, pairs, *at);
            }
            kernels.rope_table(position_of, frequencies, magnitude, pairs, cosines, sines);
            for (int64_t head = 0; head < heads; head++) {
                kernels.rotate(x + (row * heads + head) * dim, cosines, sines, pairs, neox);
            }
        }
    });
}

void swiglu(const float* gate, const float* up, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.swiglu(gate + begin, up + begin, end - begin, y + begin);
    });
}

void geglu(const float* gate, const float* up, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.geglu(gate + begin, up + begin, end - begin, y + begin);
    });
}

void gelu(const float* x, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.gelu(x + begin, end - begin, y + begin);
    });
}

void sigmoid_gate(const float* x, const float* gate, int64_t rows, int64_t width, bool one_gate, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        if (!one_gate) {
            const int64_t at = begin * width;
            kernels.sigmoid_gate(x + at, gate + at, (end - begin) * width, y + at);
            return;
        }
        for (int64_t row = begin; row < end; row++) {
            const float factor = 1 / (1 + std::exp(-gate[row]));
            for (int64_t i = row * width; i < (row + 1) * width; i++) y[i] = x[i] * factor;
        }
    });
}

void softcap(const float* x, float cap, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.softcap(x + begin, cap, end - begin, y + begin);
    });
}

void temper(float* x, const int32_t* positions, double scale, double floor_scale, int64_t rows, int64_t width) {
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            const double steps = std::floor((double(positions[row]) + 1) / floor_scale);
            const float factor = float(1 + scale * std::log1p(steps));
            for (int64_t i = row * width; i < (row + 1) * width; i++) x[i] *= factor;
        }
    });
}

void add(const float* a, const float* b, int64_t count, float* y) {
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) y[i] = a[i] + b[i];
    });
}

void multiply(const float* a, const float* b, int64_t count, float* y) {
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) y[i] = a[i] * b[i];
    });
}

void scale(const float* a, float factor, int64_t count, float* y) {
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) y[i] = a[i] * factor;
    });
}

void short_conv(const ShortConv& call) {
    const RowKernels& kernels = row_kernels();
    const int64_t width = call.channels, kept = call.taps - 1;
    parallel_ranges(call.rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        thread_local std::vector<float> ring;   // the products of the last `taps` rows, row r at r % taps
        thread_local std::vector<const float*> past;
        ring.resize(call.taps * width);
        past.resize(kept);
        const auto ring_row = [&](int64_t row) { return ring.data() + row % call.taps * width; };
        for (int64_t row = std::max<int64_t>(call.starts[begin], begin - kept); row < begin; row++) {
            const float *b = call.projected + row * 3 * width, *x = b + 2 * width;
            float* product = ring_row(row);
            for (int64_t i = 0; i < width; i++) product[i] = b[i] * x[i];
        }
        for (int64_t row = begin; row < end; row++) {
            const int64_t start = call.starts[row];
            const float* before = call.states + call.sources[row] * kept * width;
            const auto product_of = [&](int64_t other) {
                return other < start ? before + (other - start + kept) * width : ring_row(other);
            };
            for (int64_t k = 0; k < kept; k++) past[k] = product_of(row - kept + k);
            const float *b = call.projected + row * 3 * width, *c = b + width, *x = c + width;
            kernels.short_conv(b, c, x, past.data(), call.weights, call.bias, call.taps, width, ring_row(row),
                               call.y + row * width);
            if (call.targets[row] < 0) continue;
            float* after = call.states + call.targets[row] * kept * width;
            for (int64_t k = 0; k < kept; k++) {
                std::memcpy(after + k * width, product_of(row - kept + 1 + k), width * sizeof(float));
            }
        }
    });
}

void store_rows(void* target, KVType type, const int32_t* cells, const float* from, int64_t rows, int64_t width) {
    const RowKernels& kernels = row_kernels();
    const int64_t row_bytes = kv_bytes(type, width);
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            kernels.store(type, from + row * width, static_cast<uint8_t*>(target) + cells[row] * row_bytes, width);
        }
    });
}

}  // namespace puna
