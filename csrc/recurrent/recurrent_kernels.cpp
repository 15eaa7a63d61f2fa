// The kernels of recurrent layers, compiled once per instruction set.
#include "recurrent/lanes.h"
#include "recurrent/recurrent.h"

namespace puna {
namespace {

void short_conv_row(const float* b, const float* c, const float* x, const float* const* past, const float* weights,
                    const float* bias, int64_t taps, int64_t width, bool activated, bool nontemporal, float* newest,
                    float* after, float* y) {
    constexpr int64_t ahead = 512;   // floats prefetched before one is loaded
    const bool past_caches = nontemporal && width % Vec::width == 0 &&
                             reinterpret_cast<uintptr_t>(after) % sizeof(Vec) == 0;
    for_vectors(width, [=](int64_t i, auto lanes) {
        const auto keep = [=](Vec inputs, int64_t k) {
            if (!after || k < 0) return;
            float* to = after + k * width + i;
            past_caches ? lanes.store_nontemporal(inputs, to) : lanes.store(inputs, to);
        };
        const Vec last = b ? lanes.load(b + i) * lanes.load(x + i) : lanes.load(x + i);
        Vec sum = bias ? lanes.load(bias + i) : Vec::splat(0);
        for (int64_t k = 0; k < taps - 1; k++) {
            if (nontemporal) __builtin_prefetch(past[k] + i + ahead);
            const Vec inputs = lanes.load(past[k] + i);
            sum = fma(inputs, lanes.load(weights + k * width + i), sum);
            keep(inputs, k - 1);
        }
        sum = fma(last, lanes.load(weights + (taps - 1) * width + i), sum);
        keep(last, taps - 2);
        lanes.store(last, newest + i);
        if (c) sum = lanes.load(c + i) * sum;
        else if (activated) sum = sum / (Vec::splat(1) + exp(Vec::splat(0) - sum));
        lanes.store(sum, y + i);
    });
    if (after && past_caches) fence_nontemporal();
}

void pool_row(const float* const* values, const float* const* gates, const float* bias, int64_t taps, int64_t width,
              float* y) {
    for_vectors(width, [=](int64_t i, auto lanes) {
        const auto gate = [=](int64_t k) { return lanes.load(gates[k] + i) + lanes.load(bias + k * width + i); };
        Vec largest = gate(0);
        for (int64_t k = 1; k < taps; k++) largest = max(largest, gate(k));
        Vec total = Vec::splat(0), sum = total;
        for (int64_t k = 0; k < taps; k++) {
            const Vec share = exp(gate(k) - largest);
            total = total + share;
            sum = fma(share, lanes.load(values[k] + i), sum);
        }
        lanes.store(sum / total, y + i);
    });
}

// Vectors of a memory's row that are processed together: for each, registers hold the added value and two sums. For 128
// keys they take 16 KB, or 32 with the widest vectors, which fits the nearest cache.
#if defined(PUNA_NEON)
constexpr int together = 8;
#else
constexpr int together = 4;
#endif
constexpr int64_t columns = together * Vec::width;

// Part of a memory's row, of a value or of a result: vectors whose lanes beyond the last column are zero.
struct Piece {
    Vec of[together];

    static PUNA_INLINE Piece zero() {
        Piece piece;
        for (int k = 0; k < together; k++) piece.of[k] = Vec::splat(0);
        return piece;
    }
    // Loads `count` columns, or all if there are more.
    static PUNA_INLINE Piece load(const float* from, int64_t count) {
        Piece piece;
        for (int k = 0; k < together; k++) {
            const int64_t left = count - k * Vec::width;
            if (left >= Vec::width) {
                piece.of[k] = Vec::load(from + k * Vec::width);
            } else {
                piece.of[k] = left > 0 ? load_part(from + k * Vec::width, int(left)) : Vec::splat(0);
            }
        }
        return piece;
    }
    PUNA_INLINE void store(float* to, int64_t count) const {
        if (count >= columns) {
            for (int k = 0; k < together; k++) of[k].store(to + k * Vec::width);
            return;
        }
        for (int k = 0; k < together; k++) {
            const int64_t left = count - k * Vec::width;
            if (left >= Vec::width) {
                of[k].store(to + k * Vec::width);
            } else if (left > 0) {
                store_part(of[k], to + k * Vec::width, int(left));
            }
        }
    }
    PUNA_INLINE void store_nontemporal(float* to) const {   // all columns
        for (int k = 0; k < together; k++) of[k].store_nontemporal(to + k * Vec::width);
    }
    PUNA_INLINE void scale(Vec factor) {
        for (int k = 0; k < together; k++) of[k] = of[k] * factor;
    }
    // Adds `factor` times another.
    PUNA_INLINE void add(Vec factor, const Piece& other) {
        for (int k = 0; k < together; k++) of[k] = fma(factor, other.of[k], of[k]);
    }
};

// Rows of a memory that are prefetched before one is loaded.
constexpr int64_t rows_ahead = 24;
template <int locality>
PUNA_INLINE void prefetch(const float* from) {
    for (int64_t i = 0; i < columns; i += 16) __builtin_prefetch(from + i, 0, locality);
}

// What is removed from a memory before something is added.
enum class Rule { nothing, delta, removal };

struct Yes {
    static constexpr bool value = true;
};
struct No {
    static constexpr bool value = false;
};

// The memory is copied to `room`, where rows are contiguous (in a state they are a power of two apart, and would evict
// each other from the nearest cache), and passes through the cache once per row of the batch: the addition, the query's
// result, and the lookup of the next row's key after the decay, or of its probe before it, are computed together,
// vector by vector, so that all sums stay in registers. Memories too large for the caches are written past them, or else
// each line would be read first, though it will have left the caches before the next step.
template <Rule rule, bool decay_of_keys>
void linear_attention_rows(const LinearAttention& call, int64_t head, int64_t column, int64_t begin, int64_t end,
                           bool nontemporal, const float* next, float* room) {
    constexpr bool delta = rule == Rule::delta, removes = rule == Rule::removal;
    const int64_t keys = call.key_dim, width = call.value_dim, count = width - column;
    const int64_t key_head = call.tiled ? head % call.key_heads : head * call.key_heads / call.heads;
    const auto state = [&](int64_t slot) { return call.states + (slot * call.heads + head) * keys * width + column; };
    const auto of_row = [&](const float* all, int64_t row) { return all + (row * call.key_heads + key_head) * keys; };
    const float* finders = removes ? call.probes : call.keys;
    float *memory = room, *factors = room + keys * columns;
    // The factor of a memory's row before row `row` of the batch: e^decay, or in `factors` for each key entry.
    const auto decay_before = [&](int64_t row) {
        const int64_t at = row * call.heads + head;
        if (!decay_of_keys) return exp(Vec::splat(call.decays[at]));
        const float* decays = call.decays + at * keys;
        for_vectors(keys, [=](int64_t i, auto lanes) { lanes.store(exp(lanes.load(decays + i)), factors + i); });
        return Vec::splat(1);
    };
    Vec factor = decay_before(begin);
    Piece found = Piece::zero();   // by this row's key or probe
    const float *finder = of_row(finders, begin), *before = state(call.rows.sources[begin]);
    for (int64_t i = 0; i < keys; i++) {
        if (i + rows_ahead < keys) prefetch<0>(before + (i + rows_ahead) * width);
        Piece piece = Piece::load(before + i * width, count);
        if (removes) found.add(Vec::splat(finder[i]), piece);
        piece.scale(decay_of_keys ? Vec::splat(factors[i]) : factor);
        if (delta) found.add(Vec::splat(finder[i]), piece);
        piece.store(memory + i * columns, columns);
    }
    for (int64_t row = begin; row < end; row++) {
        const int64_t at = row * call.heads + head;
        const bool goes_on = row + 1 < end;
        Piece added = Piece::load(call.values + at * width + column, count), y = Piece::zero(), lost = found;
        if (call.skips) y.add(Vec::splat(call.skips[head]), added);
        if (delta) added.add(Vec::splat(-1), found);
        if (call.betas) added.scale(Vec::splat(call.betas[at]));
        lost.scale(Vec::splat(-1));
        const float *query = of_row(call.queries, row), *key = of_row(call.keys, row);
        const float* removal = removes ? of_row(call.removals, row) : nullptr;
        float* kept = call.rows.targets[row] >= 0 ? state(call.rows.targets[row]) : nullptr;
        const bool past_caches = nontemporal && count >= columns && width % Vec::width == 0 &&
                                 reinterpret_cast<uintptr_t>(kept) % sizeof(Vec) == 0;
        if (goes_on) {
            finder = of_row(finders, row + 1);
            factor = decay_before(row + 1);
        }
        const auto pass = [&](auto decays, auto keeps) {
            Piece finding = Piece::zero(), answer = y;
            for (int64_t i = 0; i < keys; i++) {
                const Vec by_key = Vec::splat(key[i]), by_query = Vec::splat(query[i]), by_finder = Vec::splat(finder[i]);
                float* held = memory + i * columns;
                Piece piece;
                for (int k = 0; k < together; k++) {
                    Vec entries = Vec::load(held + k * Vec::width);
                    if (removes) entries = fma(Vec::splat(removal[i]), lost.of[k], entries);
                    entries = fma(by_key, added.of[k], entries);
                    answer.of[k] = fma(by_query, entries, answer.of[k]);
                    if (keeps.value) piece.of[k] = entries;
                    if (decays.value) {
                        if (removes) finding.of[k] = fma(by_finder, entries, finding.of[k]);
                        entries = entries * (decay_of_keys ? Vec::splat(factors[i]) : factor);
                        if (delta) finding.of[k] = fma(by_finder, entries, finding.of[k]);
                        entries.store(held + k * Vec::width);
                    }
                }
                if (!decays.value && next) prefetch<2>(next + i * width);
                if (keeps.value) {
                    past_caches ? piece.store_nontemporal(kept + i * width) : piece.store(kept + i * width, count);
                }
            }
            if (keeps.value && past_caches) fence_nontemporal();
            found = finding;
            y = answer;
        };
        if (kept) {
            goes_on ? pass(Yes{}, Yes{}) : pass(No{}, Yes{});
        } else {
            goes_on ? pass(Yes{}, No{}) : pass(No{}, No{});
        }
        y.store(call.y + at * width + column, count);
    }
}

void linear_attention_piece(const LinearAttention& call, int64_t head, int64_t column, int64_t begin, int64_t end,
                            bool nontemporal, const float* next, float* room) {
    const auto rows_by = [&](auto rows, auto rows_of_keys) {
        (call.decay_of_keys ? rows_of_keys : rows)(call, head, column, begin, end, nontemporal, next, room);
    };
    if (call.probes) {
        rows_by(linear_attention_rows<Rule::removal, false>, linear_attention_rows<Rule::removal, true>);
    } else if (call.delta) {
        rows_by(linear_attention_rows<Rule::delta, false>, linear_attention_rows<Rule::delta, true>);
    } else {
        rows_by(linear_attention_rows<Rule::nothing, false>, linear_attention_rows<Rule::nothing, true>);
    }
}

}  // namespace

const RecurrentKernels PUNA_SET::recurrent_kernels = {short_conv_row, pool_row, linear_attention_piece, columns};

}  // namespace puna
