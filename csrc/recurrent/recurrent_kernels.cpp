// The kernels of recurrent layers, compiled once per instruction set.
#include "recurrent/lanes.h"
#include "recurrent/recurrent.h"

namespace puna {
namespace {

void short_conv_row(const float* b, const float* c, const float* x, const float* const* past, const float* weights,
                    const float* bias, int64_t taps, int64_t width, bool activated, float* newest, float* y) {
    for_vectors(width, [=](int64_t i, auto lanes) {
        const Vec last = b ? lanes.load(b + i) * lanes.load(x + i) : lanes.load(x + i);
        Vec sum = bias ? lanes.load(bias + i) : Vec::splat(0);
        for (int64_t k = 0; k < taps - 1; k++) {
            sum = fma(lanes.load(past[k] + i), lanes.load(weights + k * width + i), sum);
        }
        sum = fma(last, lanes.load(weights + (taps - 1) * width + i), sum);
        lanes.store(last, newest + i);
        if (c) sum = lanes.load(c + i) * sum;
        else if (activated) sum = sum / (Vec::splat(1) + exp(Vec::splat(0) - sum));
        lanes.store(sum, y + i);
    });
}

// Vectors of a memory's row that are worked on together: as many as registers hold besides those of the sums.
#if defined(__AVX512F__)
constexpr int together = 8;
#elif defined(PUNA_NEON)
constexpr int together = 6;
#else
constexpr int together = 4;
#endif
constexpr int64_t columns = together * Vec::width;

// A piece of a memory's row, of a value or of a result; the last vector may have fewer lanes that count.
template <bool whole>
struct Piece {
    Vec of[together];

    static PUNA_INLINE Piece zero() {
        Piece piece;
        for (int k = 0; k < together; k++) piece.of[k] = Vec::splat(0);
        return piece;
    }
    static PUNA_INLINE Piece load(const float* from, int64_t count) {
        Piece piece;
        for (int k = 0; k < together; k++) {
            const int64_t left = count - k * Vec::width;
            if (whole || left >= Vec::width) {
                piece.of[k] = Vec::load(from + k * Vec::width);
            } else {
                piece.of[k] = left > 0 ? load_part(from + k * Vec::width, int(left)) : Vec::splat(0);
            }
        }
        return piece;
    }
    PUNA_INLINE void store(float* to, int64_t count) const {
        for (int k = 0; k < together; k++) {
            const int64_t left = count - k * Vec::width;
            if (whole || left >= Vec::width) {
                of[k].store(to + k * Vec::width);
            } else if (left > 0) {
                store_part(of[k], to + k * Vec::width, int(left));
            }
        }
    }
    PUNA_INLINE void scale(Vec factor) {
        for (int k = 0; k < together; k++) of[k] = of[k] * factor;
    }
    // Plus `factor` times another.
    PUNA_INLINE void add(Vec factor, const Piece& other) {
        for (int k = 0; k < together; k++) of[k] = fma(factor, other.of[k], of[k]);
    }
};

// What a key's row of the memory is multiplied by before each row of the batch: e^decay.
class Factors {
public:
    // `room` is for key_dim floats.
    Factors(const LinearAttention& call, int64_t head, float* room) : call_(call), head_(head), of_keys_(room) {}

    void look_at(int64_t row) {
        const int64_t at = row * call_.heads + head_;
        if (!call_.decay_of_keys) {
            one_ = exp(Vec::splat(call_.decays[at]));
            return;
        }
        const float* decays = call_.decays + at * call_.key_dim;
        float* factors = of_keys_;
        for_vectors(call_.key_dim, [=](int64_t i, auto lanes) { lanes.store(exp(lanes.load(decays + i)), factors + i); });
    }

    PUNA_INLINE Vec of(int64_t key) const { return call_.decay_of_keys ? Vec::splat(of_keys_[key]) : one_; }

private:
    const LinearAttention& call_;
    int64_t head_;
    float* of_keys_;
    Vec one_ = Vec::splat(1);
};

// The memory lies where the state after the last row is to be, and goes through the cache once per row: what a row adds
// to it, what its query finds, and what the next row's key finds after the decay, or its probe before it, are computed
// together.
template <bool whole, bool removes>
void linear_attention_rows(const LinearAttention& call, int64_t head, int64_t column, int64_t begin, int64_t end,
                           float* room) {
    const int64_t keys = call.key_dim, width = call.value_dim, count = width - column;
    const int64_t key_head = call.tiled ? head % call.key_heads : head * call.key_heads / call.heads;
    const auto state = [&](int64_t slot) { return call.states + (slot * call.heads + head) * keys * width + column; };
    const auto of_row = [&](const float* all, int64_t row) { return all + (row * call.key_heads + key_head) * keys; };
    const float* finders = removes ? call.probes : call.keys;
    const float* from = state(call.rows.sources[begin]);
    const int64_t last = call.rows.targets[end - 1];
    float* memory = last >= 0 ? state(last) : room;
    const int64_t stride = last >= 0 ? width : columns;
    Factors factors(call, head, room + keys * columns);
    Piece<whole> found = Piece<whole>::zero();   // by this row's key or probe
    factors.look_at(begin);
    const float* finder = of_row(finders, begin);
    for (int64_t i = 0; i < keys; i++) {
        Piece<whole> piece = Piece<whole>::load(from + i * width, count);
        if (removes) found.add(Vec::splat(finder[i]), piece);
        piece.scale(factors.of(i));
        if (call.delta) found.add(Vec::splat(finder[i]), piece);
        piece.store(memory + i * stride, count);
    }
    for (int64_t row = begin; row < end; row++) {
        const int64_t at = row * call.heads + head;
        const bool more = row + 1 < end;
        Piece<whole> added = Piece<whole>::load(call.values + at * width + column, count), y = Piece<whole>::zero();
        if (call.skips) y.add(Vec::splat(call.skips[head]), added);
        if (call.delta) added.add(Vec::splat(-1), found);
        if (call.betas) added.scale(Vec::splat(call.betas[at]));
        const float *query = of_row(call.queries, row), *key = of_row(call.keys, row);
        const float* removal = removes ? of_row(call.removals, row) : nullptr;
        if (more) finder = of_row(finders, row + 1);
        float* kept = more && call.rows.targets[row] >= 0 ? state(call.rows.targets[row]) : nullptr;
        if (more) factors.look_at(row + 1);
        Piece<whole> lost = found;
        lost.scale(Vec::splat(-1));
        found = Piece<whole>::zero();
        for (int64_t i = 0; i < keys; i++) {
            Piece<whole> piece = Piece<whole>::load(memory + i * stride, count);
            if (removes) piece.add(Vec::splat(removal[i]), lost);
            piece.add(Vec::splat(key[i]), added);
            y.add(Vec::splat(query[i]), piece);
            if (kept) piece.store(kept + i * width, count);
            if (more) {
                if (removes) found.add(Vec::splat(finder[i]), piece);
                piece.scale(factors.of(i));
                if (call.delta) found.add(Vec::splat(finder[i]), piece);
            }
            piece.store(memory + i * stride, count);
        }
        y.store(call.y + at * width + column, count);
    }
}

void linear_attention_piece(const LinearAttention& call, int64_t head, int64_t column, int64_t begin, int64_t end,
                            float* room) {
    const bool whole = call.value_dim - column >= columns;
    if (call.probes) {
        (whole ? linear_attention_rows<true, true> : linear_attention_rows<false, true>)(call, head, column, begin,
                                                                                         end, room);
    } else {
        (whole ? linear_attention_rows<true, false> : linear_attention_rows<false, false>)(call, head, column, begin,
                                                                                           end, room);
    }
}

}  // namespace

const RecurrentKernels PUNA_SET::recurrent_kernels = {short_conv_row, linear_attention_piece, columns};

}  // namespace puna
