#include "matrix/product.h"

#include <algorithm>
#include <cstring>

#include "core/pool.h"

namespace puna {
namespace {

// A task is worth at least this many bytes of weights times tokens (about 10 us).
constexpr int64_t min_work = 128 << 10;

// Tokens multiplied by a row group one after another while both are in the second-level cache.
constexpr int64_t cached_tokens = 64;

// Scratch memory of wide functions, kept between calls, which are many and short.
uint8_t* room_for_wide() {
    thread_local const Allocation room = allocate_memory(wide_room);
    return room.get();
}

int64_t block_bytes(Form form) {
    switch (form) {
        case Form::per_256: return sizeof(SuperActivations);
        case Form::per_32: return sizeof(BlockActivations);
        case Form::split: return sizeof(SplitBlock);
        case Form::words: return sizeof(WordBlock);
        case Form::floats: break;
    }
    return sizeof(float);
}
int64_t block_columns(Form form) {
    static_assert(SplitBlock::columns == WordBlock::columns);
    return form == Form::split || form == Form::words ? SplitBlock::columns : SuperActivations::columns;
}

bool same_form(const PackedMatrix& a, const PackedMatrix& b) {
    return &a.kernels() == &b.kernels() && form_of(a) == form_of(b);
}

}  // namespace

Form form_of(const PackedMatrix& m) {
    switch (scaling_of(m.layout())) {
        case Scaling::per_256: return Form::per_256;
        case Scaling::per_32: return Form::per_32;
        case Scaling::none: break;
    }
    if (m.layout() == Layout::f32) return Form::floats;
    return m.kernels().split ? Form::split : m.kernels().words ? Form::words : Form::floats;
}

ActivationRows::ActivationRows(const PackedMatrix& m, uint8_t* memory, int64_t tokens, int64_t width)
    : kernels(&m.kernels()), form(form_of(m)), first(memory), columns(block_columns(form_of(m))) {
    if (form == Form::floats) {
        stride = width * static_cast<int64_t>(sizeof(float));
        step = columns * static_cast<int64_t>(sizeof(float));
    } else {
        stride = block_bytes(form);
        step = tokens * stride;
    }
}

int64_t ActivationRows::bytes(const PackedMatrix& m, int64_t tokens, int64_t width) {
    const Form form = form_of(m);
    if (form == Form::floats) return tokens * width * static_cast<int64_t>(sizeof(float));
    const int64_t blocks = (width + block_columns(form) - 1) / block_columns(form);
    return (blocks * tokens + rows_behind) * block_bytes(form);
}

void ActivationRows::put(int64_t token, int64_t column, const float* x, int64_t count) const {
    for (int64_t k = 0; k < count; k += columns) {
        uint8_t* to = first + token * stride + (column + k) / columns * step;
        const int64_t n = std::min(count - k, columns);
        switch (form) {
            case Form::per_256: kernels->quantize_per_256(x + k, n, reinterpret_cast<SuperActivations*>(to)); break;
            case Form::per_32: kernels->quantize_per_32(x + k, n, reinterpret_cast<BlockActivations*>(to)); break;
            case Form::split: kernels->split(x + k, n, reinterpret_cast<SplitBlock*>(to)); break;
            case Form::words: kernels->words(x + k, n, reinterpret_cast<WordBlock*>(to)); break;
            case Form::floats: std::memcpy(to, x + k, static_cast<size_t>(n) * sizeof(float)); break;
        }
    }
}

void multiply(const PackedMatrix& m, int64_t first, int64_t groups, const void* const* x, int64_t step,
              float* const* y, int64_t tokens) {
    const MatrixKernels& kernels = m.kernels();
    const int layout = static_cast<int>(m.layout());
    const PrefetchDistance distance = kernels.prefetch.with(tokens, static_cast<int64_t>(m.bytes()));
    if (kernels.wide[layout] && tokens >= kernels.wide_from[layout]) {
        if (groups == 0) return;
        kernels.wide[layout](m.group(first), m.stride(), groups, m.columns(), x, step, y, tokens, room_for_wide(),
                             distance);
        return;
    }
    // Few tokens: one pass over the weights. More: a few groups at a time, because float kernels work on several,
    // and four fit the first-level cache's share of a chunk while tiles of tokens pass by.
    const int64_t tile = kernels.tile[layout], most = tokens <= tile ? groups : 4;
    for (int64_t begin = 0; begin < tokens; begin += cached_tokens) {
        const int64_t end = std::min(tokens, begin + cached_tokens);
        for (int64_t group = 0; group < groups; group += most) {
            const int64_t together = std::min(most, groups - group);
            for (int64_t t = begin; t < end; t += tile) {
                const int64_t n = std::min(tile, end - t);
                float* out[max_tile];
                for (int64_t i = 0; i < n; i++) out[i] = y[t + i] + group * kernels.rows;
                const bool cached = t > begin;   // the previous tile has fetched them
                kernels.product[layout][n - 1](m.group(first + group), m.stride(), together, m.columns(), x + t, step,
                                               out, cached ? PrefetchDistance{} : distance);
            }
        }
    }
}

int64_t groups_per_task(const PackedMatrix& m, int64_t bytes, int64_t tokens) {
    // About eight tasks per thread: enough to even out a busy core, few enough to cost nothing.
    const int64_t share = std::max(bytes / (8 * thread_count()), min_work / std::clamp<int64_t>(tokens, 1, 32));
    return std::max<int64_t>(4, share / std::max<int64_t>(m.stride(), 1) / 4 * 4);
}

void Activations::want(const PackedMatrix& m, Scratch& scratch) {
    for (const Wanted& other : wanted_) {
        if (same_form(*other.matrix, m)) return;
    }
    const bool as_it_is = form_of(m) == Form::floats;
    wanted_.push_back({&m, as_it_is ? 0 : scratch.reserve<uint8_t>(ActivationRows::bytes(m, tokens_, columns_))});
}

void Activations::prepare(const Scratch& scratch) {
    bool all_there = true;
    for (const Wanted& wanted : wanted_) {
        const bool as_it_is = form_of(*wanted.matrix) == Form::floats;
        auto* given = reinterpret_cast<uint8_t*>(const_cast<float*>(x_));   // will only be read
        rows_.emplace_back(*wanted.matrix, as_it_is ? given : scratch.at<uint8_t>(wanted.reserved), tokens_, columns_);
        all_there = all_there && as_it_is;
    }
    if (all_there) return;
    // Enough ranges for all threads even with a few tokens, each worth handing to one.
    const auto tokens_of = [&](int64_t numbers) { return std::max<int64_t>(1, numbers / std::max<int64_t>(columns_, 1)); };
    const int64_t grain = std::clamp<int64_t>(tokens_ / (4 * thread_count()), tokens_of(1536), tokens_of(16384));
    parallel_ranges(tokens_, grain, [&](int64_t begin, int64_t end, int) {
        for (const ActivationRows& rows : rows_) {
            if (rows.form == Form::floats) continue;
            for (int64_t t = begin; t < end; t++) rows.put(t, 0, x_ + t * columns_, columns_);
        }
    });
}

const ActivationRows& Activations::rows(const PackedMatrix& m) const {
    size_t i = 0;
    while (!same_form(*wanted_[i].matrix, m)) i++;
    return rows_[i];
}

}  // namespace puna
