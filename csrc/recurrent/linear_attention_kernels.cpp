// The kernels of linear attention, compiled once per instruction set.
#include "recurrent/lanes.h"
#include "recurrent/linear_attention.h"

namespace puna {
namespace {

// Columns of a memory that are processed together, and rows whose columns are, so that they stay in the nearest cache.
constexpr int64_t columns = 128, tile_rows = 32;
// Vectors of columns for which registers hold what four finders find.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int for_four = 2;
#else
constexpr int for_four = 4;
#endif
// Rows of a memory that are prefetched before two are loaded.
constexpr int64_t rows_ahead = 32;
// Rows of the batch that are prefetched before one is loaded.
constexpr int64_t rows_fetched = 8;

using Ahead = LinearAttentionKernels::Ahead;

// The rule by which something is removed from a memory before a row adds to it.
enum class Rule { nothing, delta, removal };

// Rows of a memory, of whole vectors of columns.
struct Rows {
    const float* from;
    int64_t stride;
};

// The scratch memory of a piece.
struct Room {
    float* memory;    // [keys, columns]
    float* found;     // [2 * additions_per_base, columns]: what finders found
    float* values;    // [additions_per_base, columns]: values of the additions
    float* finders;   // [2 * additions_per_base, keys]: decayed keys or probes, and queries
    float* decays;    // [additions_per_base, keys]: factors of each row of a call
    float* keys;      // [additions_per_base, keys]: keys of the additions
    float* factors;   // [keys]: of the base

    static int64_t size(int64_t keys) {
        return (keys + 3 * additions_per_base) * columns + (4 * additions_per_base + 1) * keys;
    }

    Room(float* at, int64_t count) {
        memory = at;
        found = memory + count * columns;
        values = found + 2 * additions_per_base * columns;
        finders = values + additions_per_base * columns;
        decays = finders + 2 * additions_per_base * count;
        keys = decays + additions_per_base * count;
        factors = keys + additions_per_base * count;
    }
};

bool can_stream(const float* to) { return reinterpret_cast<uintptr_t>(to) % sizeof(Vec) == 0; }

float exponential(float x) {
    float lanes[Vec::width];
    exp(Vec::splat(x)).store(lanes);
    return lanes[0];
}

// Inlined, or else GCC would drop calls of a function that only prefetches.
PUNA_INLINE void prefetch(const float* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(from + i);
}

PUNA_INLINE void copy(const float* from, int64_t count, float* to) {
    for_vectors(count, [=](int64_t i, auto lanes) { lanes.store(lanes.load(from + i), to + i); });
}

PUNA_INLINE void multiply(const float* a, const float* b, int64_t count, float* to) {
    for_vectors(count, [=](int64_t i, auto lanes) { lanes.store(lanes.load(a + i) * lanes.load(b + i), to + i); });
}

PUNA_INLINE void fill(float value, int64_t count, float* to) {
    for_vectors(count, [=](int64_t i, auto lanes) { lanes.store(Vec::splat(value), to + i); });
}

// Adds what `finders` [finders, keys] find in `rows` rows of a memory to some vectors of columns of `found` [finders,
// columns].
template <int finders, int vectors>
PUNA_NOINLINE void find(Rows memory, int64_t rows, const float* by, int64_t keys, float* found) {
    Vec sums[finders][vectors];
    for (int f = 0; f < finders; f++) {
        for (int v = 0; v < vectors; v++) sums[f][v] = Vec::load(found + f * columns + v * Vec::width);
    }
    for (int64_t i = 0; i < rows; i++, memory.from += memory.stride) {
        Vec entries[vectors];
        for (int v = 0; v < vectors; v++) entries[v] = Vec::load(memory.from + v * Vec::width);
        for (int f = 0; f < finders; f++) {
            const Vec factor = Vec::splat(by[f * keys + i]);
            for (int v = 0; v < vectors; v++) sums[f][v] = fma(factor, entries[v], sums[f][v]);
        }
    }
    for (int f = 0; f < finders; f++) {
        for (int v = 0; v < vectors; v++) sums[f][v].store(found + f * columns + v * Vec::width);
    }
}

// The same for three finders or more, whose memory is in the caches after the first few rows.
void find_by_many(Rows memory, const float* by, int64_t finders, int64_t keys, int64_t vectors, float* found) {
    for (int64_t i = 0; i < keys; i += tile_rows) {
        const int64_t rows = i + tile_rows < keys ? tile_rows : keys - i;
        for (int64_t f = 0; f < finders;) {
            const int64_t together = finders - f < 4 ? 1 : 4;
            const float* here = by + f * keys + i;
            for (int64_t v = 0; v < vectors;) {
                const Rows from = {memory.from + i * memory.stride + v * Vec::width, memory.stride};
                float* to = found + f * columns + v * Vec::width;
                const bool wide = v + for_four <= vectors;
                if (together == 4) {
                    wide ? find<4, for_four>(from, rows, here, keys, to) : find<4, 1>(from, rows, here, keys, to);
                } else {
                    wide ? find<1, for_four>(from, rows, here, keys, to) : find<1, 1>(from, rows, here, keys, to);
                }
                v += wide ? for_four : 1;
            }
            f += together;
        }
    }
}

// The same for one or two finders and up to two rows; fetches as many rows from `ahead` on, unless that is null.
template <int finders, int vectors>
PUNA_INLINE void find_in_two(Rows memory, int64_t rows, const float* by, int64_t keys, Rows ahead, float* found) {
    Vec sums[finders][vectors];
    for (int f = 0; f < finders; f++) {
        for (int v = 0; v < vectors; v++) sums[f][v] = Vec::load(found + f * columns + v * Vec::width);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int v = 0; ahead.from && v < vectors * Vec::width; v += 16) {
            __builtin_prefetch(ahead.from + i * ahead.stride + v, 0, 0);
        }
        for (int v = 0; v < vectors; v++) {
            const Vec entries = Vec::load(memory.from + i * memory.stride + v * Vec::width);
            for (int f = 0; f < finders; f++) sums[f][v] = fma(Vec::splat(by[f * keys + i]), entries, sums[f][v]);
        }
    }
    for (int f = 0; f < finders; f++) {
        for (int v = 0; v < vectors; v++) sums[f][v].store(found + f * columns + v * Vec::width);
    }
}

// The same for all rows. The memory is read in order, two rows at a time, and rows are fetched before it, at last those
// of `next`, unless that is null.
template <int finders>
PUNA_NOINLINE void find_by_few(Rows memory, const float* by, int64_t keys, int64_t vectors, Rows next, float* found) {
    for (int64_t i = 0; i < keys; i += 2) {
        const int64_t rows = i + 1 < keys ? 2 : 1, ahead = i + rows_ahead;
        const float* here = memory.from + i * memory.stride;
        Rows fetched = {here + rows_ahead * memory.stride, memory.stride};
        if (ahead + rows > keys) {
            fetched = {next.from && ahead >= keys ? next.from + (ahead - keys) * next.stride : nullptr, next.stride};
        }
        for (int64_t v = 0; v < vectors;) {
            const int64_t at = v * Vec::width;
            const Rows from = {here + at, memory.stride};
            const Rows to = {fetched.from ? fetched.from + at : nullptr, fetched.stride};
            if (v + 4 <= vectors) find_in_two<finders, 4>(from, rows, by + i, keys, to, found + at), v += 4;
            else find_in_two<finders, 1>(from, rows, by + i, keys, to, found + at), v++;
        }
    }
}

// Writes some vectors of columns, and `rows` rows, of factors * memory + all additions.
template <int rows, int vectors>
PUNA_INLINE void add_up(Rows memory, const float* factors, const float* by, int64_t keys, const float* values,
                        float* to, int64_t stride, bool past_caches) {
    Vec sums[rows][vectors];
    for (int r = 0; r < rows; r++) {
        const Vec factor = Vec::splat(factors[r]);
        for (int v = 0; v < vectors; v++) {
            sums[r][v] = factor * Vec::load(memory.from + r * memory.stride + v * Vec::width);
        }
    }
    for (int j = 0, end = unknown(additions_per_base); j < end; j++, values += columns, by += keys) {
        Vec added[vectors];
        for (int v = 0; v < vectors; v++) added[v] = Vec::load(values + v * Vec::width);
        for (int r = 0; r < rows; r++) {
            const Vec key = Vec::splat(by[r]);
            for (int v = 0; v < vectors; v++) sums[r][v] = fma(key, added[v], sums[r][v]);
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++) {
            float* at = to + r * stride + v * Vec::width;
            past_caches ? sums[r][v].store_nontemporal(at) : sums[r][v].store(at);
        }
    }
}

template <int rows>
PUNA_NOINLINE void add_up_rows(Rows memory, int64_t i, const Room& room, int64_t keys, int64_t vectors, float* to,
                               int64_t stride, bool past_caches) {
    const float *from = memory.from + i * memory.stride, *factors = room.factors + i, *by = room.keys + i;
    const float* values = room.values;
    to += i * stride;
    const float* const end = from + vectors * Vec::width;
    for (; from + for_four * Vec::width <= end; from += for_four * Vec::width) {
        add_up<rows, for_four>({from, memory.stride}, factors, by, keys, values, to, stride, past_caches);
        to += for_four * Vec::width, values += for_four * Vec::width;
    }
    for (; from < end; from += Vec::width, to += Vec::width, values += Vec::width) {
        add_up<rows, 1>({from, memory.stride}, factors, by, keys, values, to, stride, past_caches);
    }
}

// Additions to a memory: the sum of share * key value^T.
struct Additions {
    int64_t count;
    float* keys;   // [additions_per_base, keys]
    float shares[additions_per_base];
};

// Products of a row's vectors with the keys of additions, times their shares.
struct Products {
    float of_probe[additions_per_base], of_key[additions_per_base], of_query[additions_per_base];
};

// Decays additions by a factor, or by `decays` for each entry of keys. The probe finds what was there before, the key
// and the query what is left.
template <Rule rule, bool by_entries>
void decay(Additions& additions, float factor, const float* decays, const float* probe, const float* key,
           const float* query, int64_t keys, Products& products) {
    for (int64_t j = 0; j < additions.count; j++) {
        Vec by_probe = Vec::splat(0), by_key = by_probe, by_query = by_probe;
        float* added = additions.keys + j * keys;
        for_vectors(keys, [&](int64_t i, auto lanes) {
            Vec entries = lanes.load(added + i);
            if (rule == Rule::removal) by_probe = fma(lanes.load(probe + i), entries, by_probe);
            if (by_entries) {
                entries = entries * lanes.load(decays + i);
                lanes.store(entries, added + i);
            }
            if (rule == Rule::delta) by_key = fma(lanes.load(key + i), entries, by_key);
            by_query = fma(lanes.load(query + i), entries, by_query);
        });
        float& share = additions.shares[j];
        if (rule == Rule::removal) products.of_probe[j] = share * sum_lanes(by_probe);
        share *= factor;
        if (rule == Rule::delta) products.of_key[j] = share * sum_lanes(by_key);
        products.of_query[j] = share * sum_lanes(by_query);
    }
}

PUNA_INLINE float product(const float* a, const float* b, int64_t count) {
    Vec sum = Vec::splat(0);
    for_vectors(count, [&](int64_t i, auto lanes) { sum = fma(lanes.load(a + i), lanes.load(b + i), sum); });
    return sum_lanes(sum);
}

// One head of one sequence, in up to `columns` columns of its values.
//
// Rows are computed together up to the one after which the memory is written: all of them look up their keys and
// queries in the base at once, and then each adds what it finds in the additions of the rows before it. Bases and
// additions too large for the caches are written past them, or else each line would be read first, though it will have
// left the caches before it is read again.
class Piece {
public:
    Piece(const LinearAttention& call, int64_t head, int64_t column, bool nontemporal, const Ahead& next,
          float* scratch)
        : call(call), rule(call.probes ? Rule::removal : call.delta ? Rule::delta : Rule::nothing),
          decay_of_keys(call.decay_of_keys), of_row(call.additions_of_row()), finders(rule == Rule::nothing ? 1 : 2),
          head(head), column(column), nontemporal(nontemporal), next(next), keys(call.key_dim),
          width(call.value_dim), count(width - column < columns ? width - column : columns),
          vectors((count + Vec::width - 1) / Vec::width), rest(int(count % Vec::width)),
          key_head(call.tiled ? head % call.key_heads : head * call.key_heads / call.heads), room(scratch, keys) {}

    void attend(const int32_t* new_bases, int64_t begin, int64_t end) {
        start(call.rows.sources[begin]);
        for (int64_t first = begin; first < end;) {
            const int64_t left = (additions_per_base - additions.count) / of_row;
            const int64_t last = first + left < end ? first + left : end;
            for (int64_t row = first; row < last; row++) {
                if (row + rows_fetched < end) fetch_row(row + rows_fetched);
                prepare(row, row - first);
                const int64_t target = call.rows.targets[row];
                if (target >= 0 && row + 1 - first < left) keep_factors(beside(target));
            }
            look_up((last - first) * finders, last == end);
            for (int64_t row = first; row < last; row++) {
                answer(row, row - first);
                const int64_t target = call.rows.targets[row];
                if (target >= 0 && additions.count < additions_per_base) keep_additions(beside(target));
            }
            if (additions.count == additions_per_base) {
                float* kept = new_bases[last - 1] < 0 ? nullptr : base(new_bases[last - 1]);
                if (kept || last < end) renew(kept, last < end);
            }
            first = last;
        }
    }

private:
    static constexpr int64_t most = additions_per_base - 1;   // additions beside a base

    // Begins with the memory of a slot.
    void start(int64_t slot) {
        additions.keys = room.keys;
        additions.count = call.memories.counts[slot];
        fill(1, keys, room.factors);
        if (additions.count) {
            const float* before = beside(slot);
            if (decay_of_keys) copy(before + factors_at(), keys, room.factors);
            else factor = before[factors_at()];
            copy(before, additions.count * keys, room.keys);
            for (int64_t j = 0; j < additions.count; j++) {
                additions.shares[j] = before[shares_at() + j];
                load_row(before + values_at() + j * width, room.values + j * columns);
            }
        }
        memory = {base(call.memories.base_of[slot]), width};
        if (!rest) return;
        for (int64_t i = 0; i < keys; i++) load_row(memory.from + i * width, room.memory + i * columns);
        memory = {room.memory, columns};
    }

    PUNA_INLINE void fetch_row(int64_t row) const {
        prefetch(of_head(call.queries, row), keys);
        prefetch(of_head(call.keys, row), keys);
        if (rule == Rule::removal) {
            prefetch(of_head(call.probes, row), keys);
            prefetch(of_head(call.removals, row), keys);
        }
        if (decay_of_keys) prefetch(call.decays + (row * call.heads + head) * keys, keys);
        prefetch(call.values + (row * call.heads + head) * width + column, count);
    }

    // Decays the base before the `index`-th of the rows computed together, and sets what it looks up.
    void prepare(int64_t row, int64_t index) {
        const int64_t at = row * call.heads + head;
        const float* finder = of_head(rule == Rule::removal ? call.probes : call.keys, row);
        const float* query = of_head(call.queries, row);
        float *own = room.finders + index * finders * keys, *own_query = own + (finders - 1) * keys;
        float* scale = scales + index * finders;
        row_factors[index] = 1;
        scale[0] = factor;
        if (decay_of_keys) {
            float* decays = room.decays + index * keys;
            const float* logarithms = call.decays + at * keys;
            for_vectors(keys, [=](int64_t i, auto lanes) { lanes.store(exp(lanes.load(logarithms + i)), decays + i); });
            if (rule == Rule::removal) multiply(finder, room.factors, keys, own);
            multiply(room.factors, decays, keys, room.factors);
            if (rule == Rule::delta) multiply(finder, room.factors, keys, own);
            multiply(query, room.factors, keys, own_query);
        } else {
            if (finders == 2) copy(finder, keys, own);
            copy(query, keys, own_query);
            row_factors[index] = exponential(call.decays[at]);
            factor *= row_factors[index];
        }
        if (rule != Rule::removal) scale[0] = factor;
        scale[finders - 1] = factor;
    }

    // Lets all finders look into the base; after the last ones, fetches what comes next.
    void look_up(int64_t all, bool last) {
        fill(0, all * columns, room.found);
        if (all > 2) find_by_many(memory, room.finders, all, keys, vectors, room.found);
        if (all == 2) find_by_few<2>(memory, room.finders, keys, vectors, {next.base, width}, room.found);
        if (all == 1) find_by_few<1>(memory, room.finders, keys, vectors, {next.base, width}, room.found);
        if (!last || !next.base) return;
        prefetch(next.additions, next.count * keys);
        for (int64_t j = 0; j < next.count; j++) prefetch(next.additions + values_at() + j * width, count);
        prefetch(next.additions + factors_at(), keys + most);
    }

    // Adds the `index`-th of the rows computed together to the additions, and writes its result.
    void answer(int64_t row, int64_t index) {
        const float* finder = room.finders + index * finders * keys;
        // The copies are in the nearest cache.
        const float* key = decay_of_keys || rule != Rule::delta ? of_head(call.keys, row) : finder;
        const float* query = decay_of_keys ? of_head(call.queries, row) : finder + (finders - 1) * keys;
        Products products;
        const float *decays = room.decays + index * keys, *probe = finder;
        if (rule == Rule::removal) probe = of_head(call.probes, row);
        const auto by = [&](auto whole, auto by_entries) {
            (decay_of_keys ? by_entries : whole)(additions, row_factors[index], decays, probe, key, query, keys,
                                                 products);
        };
        switch (rule) {
            case Rule::nothing: by(decay<Rule::nothing, false>, decay<Rule::nothing, true>); break;
            case Rule::delta: by(decay<Rule::delta, false>, decay<Rule::delta, true>); break;
            case Rule::removal: by(decay<Rule::removal, false>, decay<Rule::removal, true>); break;
        }
        const int64_t before = additions.count;
        if (rule == Rule::removal) add(of_head(call.removals, row), query, products);
        add(key, query, products);
        int64_t v = 0;
        for (; v + for_four <= vectors; v += for_four) answer_in<for_four>(v, row, index, before, products);
        for (; v < vectors; v++) answer_in<1>(v, row, index, before, products);
    }

    void add(const float* key, const float* query, Products& products) {
        const int64_t j = additions.count++;
        copy(key, keys, room.keys + j * keys);
        additions.shares[j] = 1;
        products.of_query[j] = product(key, query, keys);
    }

    // The same for `together` vectors of columns from the v-th on, with `before` additions of rows before it.
    template <int together>
    void answer_in(int64_t v, int64_t row, int64_t index, int64_t before, const Products& products) {
        const int64_t at = row * call.heads + head;
        const float *found = room.found + index * finders * columns + v * Vec::width;
        const float* scale = scales + index * finders;
        const float* of_finder = rule == Rule::delta ? products.of_key : products.of_probe;
        float* values = room.values + v * Vec::width;
        Vec value[together], held[together], given[together], y[together];
        for (int k = 0; k < together; k++) {
            value[k] = given[k] = load(call.values + at * width + column, v + k);
            held[k] = Vec::splat(scale[0]) * Vec::load(found + k * Vec::width);
            y[k] = Vec::splat(scale[finders - 1]) * Vec::load(found + (finders - 1) * columns + k * Vec::width);
        }
        for (int64_t j = 0; j < before; j++) {
            for (int k = 0; k < together; k++) {
                const Vec added = Vec::load(values + j * columns + k * Vec::width);
                if (rule != Rule::nothing) held[k] = fma(Vec::splat(of_finder[j]), added, held[k]);
                y[k] = fma(Vec::splat(products.of_query[j]), added, y[k]);
            }
        }
        for (int k = 0; k < together; k++) {
            float* own = values + before * columns + k * Vec::width;
            if (rule == Rule::removal) {
                const Vec lost = Vec::splat(0) - held[k];
                lost.store(own);
                y[k] = fma(Vec::splat(products.of_query[before]), lost, y[k]);
            }
            if (rule == Rule::delta) given[k] = given[k] - held[k];
            if (call.betas) given[k] = given[k] * Vec::splat(call.betas[at]);
            given[k].store(own + (of_row - 1) * columns);
            y[k] = fma(Vec::splat(products.of_query[additions.count - 1]), given[k], y[k]);
            if (call.skips) y[k] = fma(Vec::splat(call.skips[head]), value[k], y[k]);
            store(y[k], call.y + at * width + column, v + k);
        }
    }

    // The first piece of a head writes what all its pieces share.
    void keep_factors(float* after) const {
        if (column) return;
        decay_of_keys ? copy(room.factors, keys, after + factors_at()) : fill(factor, keys, after + factors_at());
    }

    void keep_additions(float* after) const {
        const bool past_caches = nontemporal && can_stream(after) && keys % Vec::width == 0 && width % Vec::width == 0;
        if (!column) {
            const int64_t all = additions.count * keys;
            for (int64_t i = 0; past_caches && i < all; i += Vec::width) {
                Vec::load(room.keys + i).store_nontemporal(after + i);
            }
            if (!past_caches) copy(room.keys, all, after);
            for (int64_t j = 0; j < additions.count; j++) after[shares_at() + j] = additions.shares[j];
        }
        for (int64_t j = 0; j < additions.count; j++) {
            store_row(room.values + j * columns, after + values_at() + j * width, past_caches);
        }
        if (past_caches) fence_nontemporal();
    }

    // Adds up the additions to a new base, which is `kept` unless that is null.
    void renew(float* kept, bool goes_on) {
        if (!decay_of_keys) fill(factor, keys, room.factors);
        for (int64_t j = 0; j < additions_per_base; j++) {
            float* values = room.values + j * columns;
            for (int64_t v = 0; v < vectors; v++) {
                const Vec scaled = Vec::splat(additions.shares[j]) * Vec::load(values + v * Vec::width);
                scaled.store(values + v * Vec::width);
            }
        }
        const bool by_room = goes_on || rest;   // else it is written where it is kept at once
        const bool past_caches = nontemporal && !by_room && width % Vec::width == 0 && can_stream(kept);
        float* to = by_room ? room.memory : kept;
        const int64_t stride = by_room ? columns : width;
        int64_t i = 0;
        for (; i + 4 <= keys; i += 4) add_up_rows<4>(memory, i, room, keys, vectors, to, stride, past_caches);
        for (; i < keys; i++) add_up_rows<1>(memory, i, room, keys, vectors, to, stride, past_caches);
        if (past_caches) fence_nontemporal();
        for (i = 0; by_room && kept && i < keys; i++) store_row(room.memory + i * columns, kept + i * width, false);
        memory = {room.memory, columns};
        additions.count = 0;
        fill(1, keys, room.factors);
        factor = 1;
    }

    float* base(int64_t index) const {
        return call.memories.bases + (index * call.heads + head) * keys * width + column;
    }
    float* beside(int64_t slot) const {
        return call.memories.additions + (slot * call.heads + head) * additions_size(keys, width);
    }
    int64_t values_at() const { return most * keys + column; }
    int64_t factors_at() const { return most * (keys + width); }
    int64_t shares_at() const { return factors_at() + keys; }
    const float* of_head(const float* all, int64_t row) const { return all + (row * call.key_heads + key_head) * keys; }

    // The v-th vector of columns, of which the last may be incomplete.
    PUNA_INLINE Vec load(const float* from, int64_t v) const {
        from += v * Vec::width;
        return rest && v + 1 == vectors ? load_part(from, rest) : Vec::load(from);
    }
    PUNA_INLINE void store(Vec entries, float* to, int64_t v) const {
        to += v * Vec::width;
        rest && v + 1 == vectors ? store_part(entries, to, rest) : entries.store(to);
    }
    void load_row(const float* from, float* to) const {
        for (int64_t v = 0; v < vectors; v++) load(from, v).store(to + v * Vec::width);
    }
    void store_row(const float* from, float* to, bool past_caches) const {
        for (int64_t v = 0; v < vectors; v++) {
            const Vec entries = Vec::load(from + v * Vec::width);
            past_caches ? entries.store_nontemporal(to + v * Vec::width) : store(entries, to, v);
        }
    }

    const LinearAttention& call;
    const Rule rule;
    const bool decay_of_keys;
    const int64_t of_row, finders;   // of a row: additions; and its key or probe, and its query
    const int64_t head, column;
    const bool nontemporal;
    const Ahead& next;
    const int64_t keys, width, count, vectors;   // count of columns, and of their vectors
    const int rest;                              // columns of the last vector, unless it is whole
    const int64_t key_head;
    const Room room;
    Rows memory;   // the base
    Additions additions;
    float factor = 1;   // of the base, unless entries of keys have decays of their own
    float scales[2 * additions_per_base], row_factors[additions_per_base];   // of what finders find, and of each row
};

void linear_attention_piece(const LinearAttention& call, const int32_t* new_bases, int64_t head, int64_t column,
                            int64_t begin, int64_t end, bool nontemporal, const Ahead& next, float* room) {
    Piece(call, head, column, nontemporal, next, room).attend(new_bases, begin, end);
}

}  // namespace

const LinearAttentionKernels PUNA_SET::linear_attention_kernels = {linear_attention_piece, Room::size, columns};

}  // namespace puna
