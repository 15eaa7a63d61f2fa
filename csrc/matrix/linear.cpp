#include "matrix/linear.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/cpu.h"
#include "core/pool.h"

namespace puna {
namespace {

// Tokens that meet a row group one after another while both lie in the second-level cache.
constexpr int64_t token_block = 64;

// A task is worth at least this many bytes of weights times tokens (about 10 us).
constexpr int64_t least_work = 128 << 10;

// One way of quantising x for one table of kernels.
struct Quantized {
    const MatrixKernels* kernels;
    Scaling scaling;
    ActivationBlock* blocks;
};

// Grows and is kept: a decode step asks for it hundreds of times.
ActivationBlock* scratch(size_t count) {
    struct Buffer {
        ActivationBlock* data = nullptr;
        size_t size = 0;
        ~Buffer() { ::operator delete[](data, std::align_val_t(64)); }
    };
    thread_local Buffer buffer;
    if (buffer.size < count) {
        ::operator delete[](buffer.data, std::align_val_t(64));
        buffer.data = nullptr;
        buffer.size = 0;
        buffer.data = static_cast<ActivationBlock*>(
            ::operator new[](count * sizeof(ActivationBlock), std::align_val_t(64)));
        buffer.size = count;
    }
    return buffer.data;
}

std::vector<Quantized> quantize(const std::vector<Product>& products, const float* x, int64_t tokens,
                                int64_t columns) {
    std::vector<Quantized> ways;
    for (const Product& product : products) {
        const MatrixKernels* kernels = &product.matrix->kernels();
        const Scaling scaling = scaling_of(product.matrix->layout());
        const auto same = [&](const Quantized& way) { return way.kernels == kernels && way.scaling == scaling; };
        if (scaling != Scaling::none && std::none_of(ways.begin(), ways.end(), same)) {
            ways.push_back({kernels, scaling, nullptr});
        }
    }
    if (ways.empty()) return ways;
    const int64_t per_token = (columns + chunk_columns - 1) / chunk_columns;
    ActivationBlock* blocks = scratch(static_cast<size_t>(per_token * tokens) * ways.size());
    for (Quantized& way : ways) {
        way.blocks = blocks;
        blocks += per_token * tokens;
    }
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1));
    parallel_ranges(tokens, grain, [&](int64_t begin, int64_t end, int) {
        for (const Quantized& way : ways) {
            const auto run = way.scaling == Scaling::per_256 ? way.kernels->quantize_per_256
                                                             : way.kernels->quantize_per_32;
            for (int64_t t = begin; t < end; t++) run(x + t * columns, columns, way.blocks + t * per_token);
        }
    });
    return ways;
}

struct Job {
    const Product* product;
    const void* x;         // first token's activations
    int64_t x_stride;      // bytes from one token's to the next
    int64_t first_group, end_group;
};

// Rows of all groups but a last, partly filled one are written in place.
void run(const Job& job, int64_t tokens) {
    const PackedMatrix& m = *job.product->matrix;
    const MatrixKernels& kernels = m.kernels();
    const int layout = static_cast<int>(m.layout()), R = kernels.rows, tile = kernels.tile[layout];
    const int64_t rows = m.rows(), full = std::min(job.end_group, rows / R);

    const void* x[max_tile];
    float* y[max_tile];
    const auto tile_at = [&](int64_t t, int n, int64_t group, int64_t groups) {
        for (int i = 0; i < n; i++) {
            x[i] = static_cast<const char*>(job.x) + (t + i) * job.x_stride;
            y[i] = job.product->y + (t + i) * rows + group * R;
        }
        kernels.product[layout][n - 1](m.group(group), m.stride(), groups, m.columns(), x, y);
    };
    for (int64_t begin = 0; begin < tokens; begin += token_block) {
        const int64_t end = std::min(tokens, begin + token_block);
        if (end - begin <= tile) {
            if (full > job.first_group) {
                tile_at(begin, static_cast<int>(end - begin), job.first_group, full - job.first_group);
            }
            continue;
        }
        // Float kernels work on several groups at a time; four fit the first-level cache's share of a chunk.
        for (int64_t group = job.first_group; group < full; group += 4) {
            const int64_t groups = std::min<int64_t>(4, full - group);
            for (int64_t t = begin; t < end; t += tile) {
                tile_at(t, static_cast<int>(std::min<int64_t>(tile, end - t)), group, groups);
            }
        }
    }
    if (job.end_group > full) {   // the last, partly filled group
        float padded[max_tile][32];
        for (int64_t t = 0; t < tokens; t += tile) {
            const int n = static_cast<int>(std::min<int64_t>(tile, tokens - t));
            for (int i = 0; i < n; i++) {
                x[i] = static_cast<const char*>(job.x) + (t + i) * job.x_stride;
                y[i] = padded[i];
            }
            kernels.product[layout][n - 1](m.group(full), m.stride(), 1, m.columns(), x, y);
            for (int i = 0; i < n; i++) {
                std::memcpy(job.product->y + (t + i) * rows + full * R, padded[i],
                            static_cast<size_t>(rows - full * R) * sizeof(float));
            }
        }
    }
    if (const float* bias = job.product->bias) {
        const int64_t begin = job.first_group * R, end = std::min(rows, job.end_group * R);
        for (int64_t t = 0; t < tokens; t++) {
            float* out = job.product->y + t * rows;
            for (int64_t r = begin; r < end; r++) out[r] += bias[r];
        }
    }
}

}  // namespace

void linear(const std::vector<Product>& products, const float* x, int64_t tokens, int64_t columns) {
    if (tokens == 0) return;
    const std::vector<Quantized> ways = quantize(products, x, tokens, columns);
    int64_t bytes = 0;
    for (const Product& product : products) bytes += static_cast<int64_t>(product.matrix->bytes());
    // About eight tasks per thread: enough to even out a busy core, few enough to cost nothing.
    const int64_t share = std::max(bytes / (8 * thread_count()), least_work / std::min<int64_t>(tokens, 32));
    std::vector<Job> jobs;
    for (const Product& product : products) {
        const PackedMatrix& m = *product.matrix;
        Job job{&product, x, columns * static_cast<int64_t>(sizeof(float)), 0, 0};
        for (const Quantized& way : ways) {
            if (way.kernels == &m.kernels() && way.scaling == scaling_of(m.layout())) {
                job.x = way.blocks;
                job.x_stride = (columns + chunk_columns - 1) / chunk_columns *
                               static_cast<int64_t>(sizeof(ActivationBlock));
            }
        }
        const int64_t grain = std::max<int64_t>(4, share / std::max<int64_t>(m.stride(), 1) / 4 * 4);
        for (job.first_group = 0; job.first_group < m.groups(); job.first_group += grain) {
            job.end_group = std::min(m.groups(), job.first_group + grain);
            jobs.push_back(job);
        }
    }
    parallel_for(static_cast<int64_t>(jobs.size()),
                 [&](int64_t i, int) { run(jobs[static_cast<size_t>(i)], tokens); });
}

const MatrixKernels& matrix_kernels([[maybe_unused]] Layout layout) {
#if defined(__x86_64__)
    if (cpu_level() == CpuLevel::avx512 && avx512_matrix_kernels().product[static_cast<int>(layout)][0]) {
        return avx512_matrix_kernels();
    }
    if (cpu_level() >= CpuLevel::avx2 && cpu_level() != CpuLevel::neon) return avx2_matrix_kernels();
#endif
    return portable_matrix_kernels();
}

}  // namespace puna
