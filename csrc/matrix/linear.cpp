#include "matrix/linear.h"

#include <algorithm>
#include <cstring>

#include "core/pool.h"
#include "matrix/product.h"

namespace puna {
namespace {

struct Job {
    const Product* product;
    const ActivationRows* x;
    int64_t first_group, end_group;
};

// Rows of all groups but a last, partly filled one are written in place.
void run(const Job& job, int64_t tokens) {
    const PackedMatrix& m = *job.product->matrix;
    const int64_t rows = m.rows(), R = m.kernels().rows, full = std::min(job.end_group, rows / R);
    float padded[token_block][max_group_rows];

    const void* x[token_block];
    float* y[token_block];
    for (int64_t begin = 0; begin < tokens; begin += token_block) {
        const int64_t n = std::min(token_block, tokens - begin);
        float* out = job.product->y + begin * rows;
        for (int64_t t = 0; t < n; t++) {
            x[t] = (*job.x)[begin + t];
            y[t] = out + t * rows + job.first_group * R;
        }
        multiply(m, job.first_group, full - job.first_group, x, job.x->step, y, n);
        if (job.end_group > full) {
            for (int64_t t = 0; t < n; t++) y[t] = padded[t];
            multiply(m, full, 1, x, job.x->step, y, n);
            for (int64_t t = 0; t < n; t++) {
                std::memcpy(out + t * rows + full * R, padded[t], static_cast<size_t>(rows - full * R) * sizeof(float));
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
    Scratch scratch;
    Activations activations(x, tokens, columns);
    int64_t bytes = 0;
    for (const Product& product : products) {
        activations.want(*product.matrix, scratch);
        bytes += static_cast<int64_t>(product.matrix->bytes());
    }
    scratch.allocate();
    activations.prepare(scratch);
    std::vector<Job> jobs;
    for (const Product& product : products) {
        const PackedMatrix& m = *product.matrix;
        const int64_t grain = groups_per_task(m, bytes, tokens);
        for (int64_t group = 0; group < m.groups(); group += grain) {
            jobs.push_back({&product, &activations.rows(m), group, std::min(m.groups(), group + grain)});
        }
    }
    parallel_for(static_cast<int64_t>(jobs.size()),
                 [&](int64_t i, int) { run(jobs[static_cast<size_t>(i)], tokens); });
}

}  // namespace puna
