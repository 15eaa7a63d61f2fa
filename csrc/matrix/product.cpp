#include "matrix/product.h"

#include <algorithm>

#include "core/pool.h"

namespace puna {
namespace {

// A task is worth at least this many bytes of weights times tokens (about 10 us).
constexpr int64_t least_work = 128 << 10;

// Tokens that meet a row group one after another while both lie in the second-level cache.
constexpr int64_t cached_tokens = 64;

}  // namespace

void multiply(const PackedMatrix& m, int64_t first, int64_t groups, const void* const* x, float* const* y,
              int64_t tokens) {
    const MatrixKernels& kernels = m.kernels();
    const int layout = static_cast<int>(m.layout());
    if (kernels.wide[layout] && tokens >= kernels.wide_tokens) {
        if (groups > 0) kernels.wide[layout](m.group(first), m.stride(), groups, m.columns(), x, y, tokens);
        return;
    }
    // Few tokens: one pass over the weights. More: a few groups at a time, because float kernels work on several,
    // and four fit the first-level cache's share of a chunk while tiles of tokens pass by.
    const int64_t tile = kernels.tile[layout], step = tokens <= tile ? groups : 4;
    for (int64_t begin = 0; begin < tokens; begin += cached_tokens) {
        const int64_t end = std::min(tokens, begin + cached_tokens);
        for (int64_t group = 0; group < groups; group += step) {
            const int64_t together = std::min(step, groups - group);
            for (int64_t t = begin; t < end; t += tile) {
                const int64_t n = std::min(tile, end - t);
                float* out[max_tile];
                for (int64_t i = 0; i < n; i++) out[i] = y[t + i] + group * kernels.rows;
                kernels.product[layout][n - 1](m.group(first + group), m.stride(), together, m.columns(), x + t, out);
            }
        }
    }
}

int64_t groups_per_task(const PackedMatrix& m, int64_t bytes, int64_t tokens) {
    // About eight tasks per thread: enough to even out a busy core, few enough to cost nothing.
    const int64_t share = std::max(bytes / (8 * thread_count()), least_work / std::clamp<int64_t>(tokens, 1, 32));
    return std::max<int64_t>(4, share / std::max<int64_t>(m.stride(), 1) / 4 * 4);
}

const Activations::Form* Activations::form(const PackedMatrix& m) const {
    for (const Form& form : forms_) {
        const PackedMatrix& other = *form.matrix;
        if (&other.kernels() == &m.kernels() && scaling_of(other.layout()) == scaling_of(m.layout())) return &form;
    }
    return nullptr;
}

void Activations::want(const PackedMatrix& m, Scratch& scratch) {
    if (scaling_of(m.layout()) == Scaling::none || form(m)) return;
    forms_.push_back({&m, scratch.reserve<ActivationBlock>(activation_blocks(columns_) * tokens_), nullptr});
}

void Activations::prepare(const Scratch& scratch) {
    if (forms_.empty()) return;
    for (Form& form : forms_) form.blocks = scratch.at<ActivationBlock>(form.reserved);
    const int64_t per_token = activation_blocks(columns_);
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(columns_, 1));
    parallel_ranges(tokens_, grain, [&](int64_t begin, int64_t end, int) {
        for (const Form& form : forms_) {
            for (int64_t t = begin; t < end; t++) {
                quantize_row(*form.matrix, x_ + t * columns_, columns_, form.blocks + t * per_token);
            }
        }
    });
}

Activations::Rows Activations::rows(const PackedMatrix& m) const {
    if (const Form* found = form(m)) {
        return {reinterpret_cast<const char*>(found->blocks),
                activation_blocks(columns_) * static_cast<int64_t>(sizeof(ActivationBlock))};
    }
    return {reinterpret_cast<const char*>(x_), columns_ * static_cast<int64_t>(sizeof(float))};
}

}  // namespace puna
