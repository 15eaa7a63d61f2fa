#include "matrix/linear.h"

#include <algorithm>
#include <cstring>

#include "core/pool.h"
#include "matrix/product.h"

namespace puna {
namespace {

// Some row groups times one row of the activations, and of y, in every `every`, starting at `offset`.
struct Job {
    const Product* product;
    const ActivationRows* x;
    int64_t first_group, end_group;
    int64_t offset = 0, every = 1;
};

// Rows of all groups except a last, partly filled one are written in place.
void run(const Job& job, int64_t tokens) {
    const PackedMatrix& m = *job.product->matrix;
    const int64_t apart = job.every * m.rows();   // distance of neighbouring tokens' results
    const int64_t rows = m.rows(), R = m.kernels().rows, full = std::min(job.end_group, rows / R);
    float padded[token_block][max_group_rows];

    const void* x[token_block];
    float* y[token_block];
    for (int64_t begin = 0; begin < tokens; begin += token_block) {
        const int64_t n = std::min(token_block, tokens - begin);
        float* out = job.product->y + begin * apart + job.offset * rows;
        for (int64_t t = 0; t < n; t++) {
            x[t] = (*job.x)[(begin + t) * job.every + job.offset];
            y[t] = out + t * apart + job.first_group * R;
        }
        multiply(m, job.first_group, full - job.first_group, x, job.x->step, y, n);
        if (job.end_group > full) {
            for (int64_t t = 0; t < n; t++) y[t] = padded[t];
            multiply(m, full, 1, x, job.x->step, y, n);
            for (int64_t t = 0; t < n; t++) {
                std::memcpy(out + t * apart + full * R, padded[t], static_cast<size_t>(rows - full * R) * sizeof(float));
            }
        }
    }
    if (const float* bias = job.product->bias) {
        const int64_t begin = job.first_group * R, end = std::min(rows, job.end_group * R);
        for (int64_t t = 0; t < tokens; t++) {
            float* out = job.product->y + t * apart + job.offset * rows;
            for (int64_t r = begin; r < end; r++) out[r] += bias[r];
        }
    }
}

// Splits the row groups of a matrix into jobs like this one, each worth handing to a thread.
void add_jobs(const Job& whole, int64_t bytes, int64_t tokens, std::vector<Job>& jobs) {
    const PackedMatrix& m = *whole.product->matrix;
    const int64_t grain = groups_per_task(m, bytes, tokens);
    for (int64_t group = 0; group < m.groups(); group += grain) {
        jobs.push_back(whole);
        jobs.back().first_group = group;
        jobs.back().end_group = std::min(m.groups(), group + grain);
    }
}

void run_all(const std::vector<Job>& jobs, int64_t tokens) {
    parallel_runs(static_cast<int64_t>(jobs.size()),
                  [&](int64_t i, int) { run(jobs[static_cast<size_t>(i)], tokens); });
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
        add_jobs({&product, &activations.rows(*product.matrix), 0, 0}, bytes, tokens, jobs);
    }
    run_all(jobs, tokens);
}

void linear_heads(const std::vector<const PackedMatrix*>& heads, const float* x, int64_t tokens, float* y) {
    if (tokens == 0 || heads.empty()) return;
    const auto count = static_cast<int64_t>(heads.size());
    Scratch scratch;
    Activations activations(x, tokens * count, heads[0]->columns());
    int64_t bytes = 0;
    for (const PackedMatrix* matrix : heads) {
        activations.want(*matrix, scratch);
        bytes += static_cast<int64_t>(matrix->bytes());
    }
    scratch.allocate();
    activations.prepare(scratch);
    std::vector<Product> products;
    for (const PackedMatrix* matrix : heads) products.push_back({matrix, nullptr, y});
    std::vector<Job> jobs;
    for (int64_t head = 0; head < count; head++) {
        const Product& product = products[static_cast<size_t>(head)];
        add_jobs({&product, &activations.rows(*product.matrix), 0, 0, head, count}, bytes, tokens, jobs);
    }
    run_all(jobs, tokens);
}

}  // namespace puna
