// The attention kernels, compiled once per instruction set.
//
// A tile of keys is transposed, so that a score is a sum down a column and the scores of 64 cells are a few vectors:
// scores and weighted values are then the same kind of small matrix product, of floats or of 16-bit integers. A query
// vector's scores of a chunk are computed first, then their softmax, then the values; so its largest score is searched
// for once, and nothing is rescaled. Every score and every value of the result is summed in a fixed order, whatever is
// computed with it, and a row never depends on cells it must not see.
#include "attention/attention.h"
#include "attention/softmax.h"
#include "attention/tile_products.h"
#include "attention/tiles.h"
#include "attention/words.h"
#include "vector/vector.h"

namespace puna {
namespace {

Rows key_rows(const AttentionCall& call, int head) {
    const int64_t bytes = kv_bytes(call.key_type, call.dim);
    return {static_cast<const uint8_t*>(call.keys) + head * bytes, call.kv_heads * bytes, bytes, call.key_type,
            call.dim, call.padded_dim()};
}

Rows value_rows(const AttentionCall& call, int head) {
    return {static_cast<const uint8_t*>(call.values) + head * call.value_step, call.kv_heads * call.value_step,
            kv_bytes(call.value_type, call.value_dim), call.value_type, call.value_dim, call.padded_value_dim()};
}

PUNA_INLINE Bias bias_of(const AttentionCall& call, int row, int head, int first_cell) {
    if (!call.bias) return {nullptr, 0, 0};
    return {call.bias + int64_t(head) * (2 * call.reach + 1), call.reach, first_cell - call.place(row)};
}

// The cells from `first` to `end` that a row sees, counted from `first`.
PUNA_INLINE Range seen_by(const AttentionCall& call, int row, int first, int end) {
    return {max(0, call.starts[row] - first), min(end, call.end(row)) - first};
}

// Copies the block's query vectors, scaled.
void copy_queries(const AttentionCall& call, const AttentionBlock& block, float* q) {
    const int group = call.group();
    const Vec scale = Vec::splat(call.softcap != 0 ? call.scale / call.softcap : call.scale * log2_e);
    for (int kv_head = block.kv_head; kv_head < block.kv_head + block.kv_heads; kv_head++) {
        for (int row = block.first; row < block.first + block.rows; row++) {
            for (int head = kv_head * group; head < (kv_head + 1) * group; head++, q += call.padded_dim()) {
                const float* from = call.q + (int64_t(row) * call.heads + head) * call.dim;
                unpack<KVType::f32>(reinterpret_cast<const uint8_t*>(from), call.dim, q);
                for (int d = 0; d < call.dim; d += Vec::width) (Vec::load(q + d) * scale).store(q + d);
            }
        }
    }
}

// The memory of attention_scratch.
struct Scratch {
    float* q;              // [vectors, padded_dim]
    float* q_worth;        // [vectors], the units of integers
    float* weight_worth;   // [vectors, tile_runs]
    float* few_rows;
    float* rest;

    Scratch(const AttentionCall& call, int vectors, float* memory)
        : q(memory), q_worth(q + int64_t(vectors) * call.padded_dim()), weight_worth(q_worth + vectors),
          few_rows(weight_worth + int64_t(vectors) * tile_runs),
          rest(few_rows + Vec::width * (int64_t(max(call.padded_dim(), call.padded_value_dim())) + 1)) {}
};

void start_block(const AttentionCall& call, const AttentionBlock& block, float* memory) {
    const int vectors = vectors_of(call, block);
    const Scratch scratch(call, vectors, memory);
    copy_queries(call, block, scratch.q);
#if defined(__AVX512F__)
    if (!as_words(call.key_type)) return;
    for (int m = 0; m < vectors; m++) {
        query_words(scratch.q + int64_t(m) * call.padded_dim(), call.dim, scratch.q_worth[m]);
    }
#endif
}

bool keeps_chunk(const AttentionCall& call) {
    return as_words(call.key_type) && as_words(call.value_type) &&
           call.padded_dim() + call.padded_value_dim() <= attention_kept_dims;
}

// A tile's keys or values: floats; or integers, with the units of keys or the largest numbers of values.
struct Unpacked {
    float *numbers, *worth;
};

// The part of a block that lies in a chunk. A tile is named by its first cell, counted from that of the first tile.
class BlockChunk {
public:
    BlockChunk(const AttentionCall& call, const AttentionBlock& block, int chunk, AttentionState state, float* memory)
        : call(call), block(block), state(state), vectors(block.rows * call.group()),
          scratch(call, vectors * block.kv_heads, memory), begin(max(block.begin, chunk * attention_chunk)),
          end(min(block.end, (chunk + 1) * attention_chunk)), first_tile(begin / tile_cells * tile_cells),
          all_keys(key_rows(call, block.kv_head)), all_values(value_rows(call, block.kv_head)) {
        for (int r = 0; r < block.rows; r++) seen[r] = seen_by(call, block.first + r, first_tile, end);
    }

    void attend() const {
        // No tile before the first one has prefetched it, and short sequences have no other.
        prefetcher(all_keys, 0, as_words(call.key_type)).prefetch_all();
        empty_state();
        if (in_pieces()) attend_pieces();
        else attend_tiles();
    }

private:
    PUNA_INLINE bool in_pieces() const {
        return keeps_chunk(call) && block.kv_heads == 1 && vectors > attention_piece;
    }

    // Every tile is unpacked for all query vectors.
    void attend_tiles() const {
        float* scores = scratch.rest;
        float* numbers = scores + int64_t(vectors) * block.kv_heads * attention_score_stride;
        const Unpacked unpacked = {numbers,
                                   numbers + int64_t(tile_cells) * max(call.padded_dim(), call.padded_value_dim())};
        for_tiles({0, block.rows}, [&](int tile) {
            CellPrefetcher next_tile = after_keys(tile);
            for_heads([&](int head, Range all) {
                unpack_keys(tile, head, next_tile, unpacked);
                score(tile, all, unpacked, next_tile, scores + int64_t(all.begin) * attention_score_stride);
            });
        });
        weigh({0, vectors * block.kv_heads}, scores);
        for_tiles({0, block.rows}, [&](int tile) {
            CellPrefetcher next_tile = after_values(tile);
            for_heads([&](int head, Range all) {
                unpack_values(tile, head, next_tile, unpacked);
                add_values(tile, all, unpacked, next_tile, scores + int64_t(all.begin) * attention_score_stride);
            });
        });
    }

    // All tiles are unpacked first, and then used by a few query vectors of one head at a time, whose scores stay in the
    // first-level cache. Keys and values are integers.
    void attend_pieces() const {
        float* scores = scratch.rest;
        float* worth = scores + attention_piece * attention_score_stride;   // of keys, then of values
        float* key_words = worth + 2 * attention_chunk;
        float* value_words = key_words + attention_chunk * call.padded_dim() / 2;
        const auto keys = [&](int tile) { return Unpacked{key_words + tile * call.padded_dim() / 2, worth + tile}; };
        const auto values = [&](int tile) {
            return Unpacked{value_words + tile * call.padded_value_dim() / 2, worth + attention_chunk + tile};
        };
        for_tiles({0, block.rows}, [&](int tile) {
            CellPrefetcher next_tile = after_keys(tile);
            unpack_keys(tile, 0, next_tile, keys(tile));
        });
        for_tiles({0, block.rows}, [&](int tile) {
            CellPrefetcher next_tile = after_values(tile);
            unpack_values(tile, 0, next_tile, values(tile));
        });
        CellPrefetcher nothing = after_values(attention_chunk);
        for (int m = 0; m < vectors; m += attention_piece) {
            const Range piece = {m, min(vectors, m + attention_piece)};
            const Range rows = {piece.begin / call.group(), (piece.end - 1) / call.group() + 1};
            for_tiles(rows, [&](int tile) { score(tile, piece, keys(tile), nothing, scores); });
            weigh(piece, scores);
            for_tiles(rows, [&](int tile) { add_values(tile, piece, values(tile), nothing, scores); });
        }
    }

    void empty_state() const {
        const int all = vectors * block.kv_heads;
        for (int m = 0; m < all; m++) state.largest[m] = minus_infinity, state.sum[m] = 0;
        const int64_t count = int64_t(all) * call.padded_value_dim();
        for (int64_t i = 0; i < count; i++) state.values[i] = 0;
    }

    // Calls use(head, its query vectors) for each key/value head.
    template <class Use>
    PUNA_INLINE void for_heads(Use use) const {
        for (int h = 0; h < block.kv_heads; h++) use(h, Range{h * vectors, (h + 1) * vectors});
    }

    // Calls use(tile) for each with cells that some rows see, or that lie between these.
    template <class Use>
    PUNA_INLINE void for_tiles(Range rows, Use use) const {
        Range all = {attention_chunk, 0};
        for (int row = rows.begin; row < rows.end; row++) all = all.with(seen[row]);
        for (int tile = all.begin / tile_cells * tile_cells; tile < all.end; tile += tile_cells) use(tile);
    }

    PUNA_INLINE const int32_t* cells_of(int tile) const { return call.cells + first_tile + tile; }
    PUNA_INLINE Range used(int tile) const {
        return {max(0, begin - first_tile - tile), min(tile_cells, end - first_tile - tile)};
    }

    PUNA_INLINE CellPrefetcher prefetcher(const Rows& rows, int tile, bool words) const {
        const Range cells = used(tile);
        return CellPrefetcher(cells_of(tile) + cells.begin, max(0, cells.size()), rows, block.kv_heads,
                              gather_work(words));
    }
    // How much of a tile's time making it takes, in percent. Pieces are multiplied when all tiles have been made.
    PUNA_INLINE int gather_work(bool words) const {
        if (!words) return vectors > max_rows ? 0 : few_gather_work;
        return in_pieces() ? 100 : 100 * words_gather_vectors / (words_gather_vectors + vectors);
    }
    // What is needed after a tile of keys, or of values.
    PUNA_INLINE CellPrefetcher after_keys(int tile) const {
        const bool words = as_words(call.key_type), last = used(tile + tile_cells).empty();
        return last ? prefetcher(all_values, 0, words) : prefetcher(all_keys, tile + tile_cells, words);
    }
    PUNA_INLINE CellPrefetcher after_values(int tile) const {
        return prefetcher(all_values, tile + tile_cells, as_words(call.value_type));
    }

    void unpack_keys(int tile, int head, CellPrefetcher& next_tile, Unpacked to) const {
        const Rows keys = key_rows(call, block.kv_head + head);
#if defined(__AVX512F__)
        if (as_words(keys.type)) {
            return gather_key_words(keys, cells_of(tile), used(tile), next_tile, scratch.few_rows, to.numbers,
                                    to.worth);
        }
#endif
        transpose_keys(keys, cells_of(tile), used(tile), next_tile, scratch.few_rows, to.numbers);
    }

    void unpack_values(int tile, int head, CellPrefetcher& next_tile, Unpacked to) const {
        const Rows values = value_rows(call, block.kv_head + head);
        const Range cells = used(tile);
#if defined(__AVX512F__)
        if (as_words(values.type)) {
            return gather_value_words(values, cells_of(tile), cells, next_tile, scratch.few_rows, to.numbers, to.worth);
        }
#endif
        for (int j = cells.begin; j < cells.end; j += cells_part) {
            next_tile.prefetch(next_tile.lines_of_gathering(tile_cells / cells_part));
            unpack_cells(values, cells_of(tile) + j, min(cells_part, cells.end - j), to.numbers + j * values.padded);
        }
    }

    // Writes the scores of some query vectors for a tile to `scores` [vectors, attention_score_stride], whose first column
    // is the first tile's first cell.
    void score(int tile, Range some, Unpacked keys, CellPrefetcher& next_tile, float* scores) const {
        const float* q = scratch.q + int64_t(some.begin) * call.padded_dim();
#if defined(__AVX512F__)
        if (as_words(call.key_type)) {
            return score_words(call, with_tile(tile, some), q, scratch.q_worth + some.begin, keys.numbers, keys.worth,
                               next_tile, scores + tile);
        }
#endif
        score_tile(call, with_tile(tile, some), q, keys.numbers, next_tile, scores + tile);
    }

    // Turns the scores of all tiles into weights.
    void weigh(Range some, float* scores) const {
        for (int m = some.begin; m < some.end; m++, scores += attention_score_stride) {
            const int row = m % vectors / call.group(), head = m / vectors * call.group() + m % call.group();
            if (seen[row].empty()) continue;
            const Bias bias = bias_of(call, block.first + row, block.kv_head * call.group() + head, first_tile);
            turn_into_weights(scores, seen[row], call.softcap, bias, state.largest[m], state.sum[m]);
        }
    }

    // Adds the values of a tile, weighted, to those of some query vectors. Weights are used up.
    void add_values(int tile, Range some, Unpacked values, CellPrefetcher& next_tile, float* weights) const {
        float* to = state.values + int64_t(some.begin) * call.padded_value_dim();
#if defined(__AVX512F__)
        if (as_words(call.value_type)) {
            return add_value_words(call, with_tile(tile, some), weights + tile, scratch.weight_worth, values.numbers,
                                   values.worth, next_tile, to);
        }
#endif
        add_value_tile(call, with_tile(tile, some), weights + tile, values.numbers, next_tile, to);
    }

    PUNA_INLINE TileVectors with_tile(int tile, Range some) const {
        return {seen, tile, some.begin % vectors, some.size(), call.group()};
    }

    const AttentionCall& call;
    const AttentionBlock& block;
    const AttentionState state;
    const int vectors;   // of one key/value head
    const Scratch scratch;
    const int begin, end, first_tile;
    const Rows all_keys, all_values;
    Range seen[attention_vectors];   // by each row, counted from the first tile
};

void attend_chunk(const AttentionCall& call, const AttentionBlock& block, int chunk, AttentionState state,
                  float* scratch) {
    BlockChunk(call, block, chunk, state, scratch).attend();
}

void merge_states(const AttentionCall& call, int vectors, AttentionState earlier, AttentionState later) {
    const int value_dim = call.padded_value_dim();
    for (int m = 0; m < vectors; m++) {
        if (later.sum[m] == 0) continue;   // sees nothing of the later chunk
        float* to = earlier.values + int64_t(m) * value_dim;
        const float* from = later.values + int64_t(m) * value_dim;
        if (earlier.sum[m] == 0) {
            earlier.largest[m] = later.largest[m];
            earlier.sum[m] = later.sum[m];
            for (int d = 0; d < value_dim; d += Vec::width) Vec::load(from + d).store(to + d);
            continue;
        }
        const float largest = later.largest[m] > earlier.largest[m] ? later.largest[m] : earlier.largest[m];
        const float a = power_of_two(earlier.largest[m] - largest), b = power_of_two(later.largest[m] - largest);
        earlier.largest[m] = largest;
        earlier.sum[m] = earlier.sum[m] * a + later.sum[m] * b;
        for (int d = 0; d < value_dim; d += Vec::width) {
            (Vec::load(to + d) * Vec::splat(a) + Vec::load(from + d) * Vec::splat(b)).store(to + d);
        }
    }
}

// The final factor of a query vector's weighted values.
float final_factor(float largest, float sum, const float* sink) {
    if (!sink) return 1 / sum;
    const float score = *sink * log2_e, most = score > largest ? score : largest;
    const float a = power_of_two(largest - most), b = power_of_two(score - most);
    return a / (sum * a + b);
}

void finish_block(const AttentionCall& call, const AttentionBlock& block, AttentionState state) {
    const int group = call.group();
    int m = 0;
    for (int kv_head = block.kv_head; kv_head < block.kv_head + block.kv_heads; kv_head++) {
        for (int row = block.first; row < block.first + block.rows; row++) {
            for (int head = kv_head * group; head < (kv_head + 1) * group; head++, m++) {
                const float* sink = call.sinks ? call.sinks + head : nullptr;
                const bool blind = call.counts[row] == 0;   // a row that sees nothing gives zeros
                const Vec factor = Vec::splat(blind ? 0 : final_factor(state.largest[m], state.sum[m], sink));
                const float* from = state.values + int64_t(m) * call.padded_value_dim();
                float* to = call.out + (int64_t(row) * call.heads + head) * call.value_dim;
                int d = 0;
                for (; d + Vec::width <= call.value_dim; d += Vec::width) (Vec::load(from + d) * factor).store(to + d);
                if (d < call.value_dim) store_part(Vec::load(from + d) * factor, to + d, call.value_dim - d);
            }
        }
    }
}

}  // namespace

const AttentionKernels PUNA_SET::attention_kernels = {keeps_chunk, start_block, attend_chunk, merge_states,
                                                      finish_block};

}  // namespace puna
