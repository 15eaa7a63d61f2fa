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

// Divides each of `count` lines of a matrix by eps + its sum. Lines begin `line` floats apart, their numbers are `step`
// apart.
void divide_by_sums(float* matrix, int64_t count, int64_t line, int64_t step, float eps) {
    for (int64_t k = 0; k < count; k++) {
        float* numbers = matrix + k * line;
        float sum = 0;
        for (int64_t i = 0; i < count; i++) sum += numbers[i * step];
        sum += eps;
        for (int64_t i = 0; i < count; i++) numbers[i * step] /= sum;
    }
}

void balance_matrix(const float* logits, float eps, int64_t rounds, int64_t count, float* y) {
    for (int64_t j = 0; j < count; j++) {
        float most = logits[j], total = 0;
        for (int64_t i = 1; i < count; i++) most = std::max(most, logits[i * count + j]);
        for (int64_t i = 0; i < count; i++) total += y[i * count + j] = std::exp(logits[i * count + j] - most);
        for (int64_t i = 0; i < count; i++) y[i * count + j] = y[i * count + j] / total + eps;
    }
    divide_by_sums(y, count, count, 1, eps);
    for (int64_t round = 1; round < rounds; round++) {
        divide_by_sums(y, count, 1, count, eps);
        divide_by_sums(y, count, count, 1, eps);
    }
}

}  // namespace

PUNA_DEFINE_CHOICE(RowKernels, row_kernels)

void rms_norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows, int64_t groups,
              int64_t width, float* sum, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t at = row * width;
            kernels.rms_norm(x + at, residual ? residual + at : nullptr, weight + row % groups * width, eps, width,
                             sum ? sum + at : nullptr, y + at);
        }
    });
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t rows, int64_t groups,
                int64_t width, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t of = row % groups * width;
            kernels.layer_norm(x + row * width, weight + of, bias ? bias + of : nullptr, eps, width, y + row * width);
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

void clamped_swiglu(const float* gate, const float* up, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.clamped_swiglu(gate + begin, up + begin, end - begin, y + begin);
    });
}

void geglu(const float* gate, const float* up, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.geglu(gate + begin, up + begin, end - begin, y + begin);
    });
}

void reglu(const float* gate, const float* up, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.reglu(gate + begin, up + begin, end - begin, y + begin);
    });
}

void gelu(const float* x, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.gelu(x + begin, end - begin, y + begin);
    });
}

void squared_relu(const float* x, int64_t count, float* y) {
    const RowKernels& kernels = row_kernels();
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        kernels.squared_relu(x + begin, end - begin, y + begin);
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

void temper(float* x, const int32_t* positions, double scale, double floor_scale, int64_t first, int64_t rows,
            int64_t width) {
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            const double steps = std::floor(double(positions[row] + first) / floor_scale);
            const float factor = float(1 + scale * std::log1p(steps));
            for (int64_t i = row * width; i < (row + 1) * width; i++) x[i] *= factor;
        }
    });
}

void softplus(const float* x, const float* scale, int64_t rows, int64_t width, float* y) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < width; i++) {
            const float value = x[row * width + i];
            // Beyond 20 the 1 is below half a bit of e^x.
            y[row * width + i] = scale[i] * (value > 20 ? value : std::log1p(std::exp(value)));
        }
    }
}

void sigmoid(const float* x, int64_t count, float* y) {
    for (int64_t i = 0; i < count; i++) y[i] = 1 / (1 + std::exp(-x[i]));
}

void signed_root(const float* x, float floor, int64_t count, float* y) {
    for (int64_t i = 0; i < count; i++) {
        const float size = std::fabs(x[i]);
        y[i] = size == 0 ? 0 : std::copysign(std::sqrt(size < floor ? floor : size), x[i]);   // NaN stays
    }
}

void add(const float* a, const float* b, int64_t count, float* y) {
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) y[i] = a[i] + b[i];
    });
}

void offset(const float* a, float number, int64_t count, float* y) {
    parallel_ranges(count, floats_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) y[i] = a[i] + number;
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

void multiply_rows(const float* a, const float* b, int64_t rows, int64_t width, float* y) {
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            for (int64_t i = 0; i < width; i++) y[row * width + i] = a[row * width + i] * b[i];
        }
    });
}

void split(const float* x, int64_t rows, int64_t parts, int64_t width, float* const* y) {
    parallel_ranges(rows, rows_per_task(parts * width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            for (int64_t p = 0; p < parts; p++) {
                std::copy_n(x + (row * parts + p) * width, width, y[p] + row * width);
            }
        }
    });
}

void join(const float* const* x, const int64_t* widths, int64_t count, int64_t rows, float* y) {
    int64_t width = 0;
    for (int64_t i = 0; i < count; i++) width += widths[i];
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            float* to = y + row * width;
            for (int64_t i = 0; i < count; i++) to = std::copy_n(x[i] + row * widths[i], widths[i], to);
        }
    });
}

void mix(const float* const* x, const float* mixture, int64_t inputs, int64_t outputs, int64_t rows, int64_t width,
         float* const* y) {
    parallel_ranges(rows, rows_per_task(inputs * outputs * width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            for (int64_t m = 0; m < outputs; m++) {
                const float* factors = mixture + (row * outputs + m) * inputs;
                float* sums = y[m] + row * width;
                std::fill_n(sums, width, 0.0f);
                for (int64_t n = 0; n < inputs; n++) {
                    const float* values = x[n] + row * width;
                    for (int64_t i = 0; i < width; i++) sums[i] += factors[n] * values[i];
                }
            }
        }
    });
}

void balance(const float* logits, float eps, int64_t rounds, int64_t rows, int64_t count, float* y) {
    const int64_t size = count * count;
    parallel_ranges(rows, rows_per_task(2 * rounds * size), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) balance_matrix(logits + row * size, eps, rounds, count, y + row * size);
    });
}

void match_rms(const float* x, const float* like, float floor, int64_t rows, int64_t width, float* y) {
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            double own = 0, wanted = 0;
            for (int64_t i = row * width; i < (row + 1) * width; i++) {
                own += double(x[i]) * x[i];
                wanted += double(like[i]) * like[i];
            }
            const float factor = float(std::sqrt(wanted / width / std::max(own / width, double(floor))));
            for (int64_t i = row * width; i < (row + 1) * width; i++) y[i] = x[i] * factor;
        }
    });
}

void above(const float* x, float deviations, int64_t rows, int64_t width, float* y) {
    parallel_ranges(rows, rows_per_task(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; row++) {
            const float *from = x + row * width, *last = from + width;
            double sum = 0, squares = 0;
            for (const float* value = from; value < last; value++) sum += *value;
            const double mean = sum / width;
            for (const float* value = from; value < last; value++) squares += (*value - mean) * (*value - mean);
            const float cutoff = float(mean + deviations * std::sqrt(squares / width));
            float* to = y + row * width;
            for (int64_t i = 0; i < width; i++) to[i] = from[i] > cutoff ? from[i] - cutoff : 0;
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
