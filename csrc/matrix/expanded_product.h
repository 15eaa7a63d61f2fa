// Products of weights that are converted to 8-bit numbers first, the form that add_super_blocks reads, for any
// instruction set: always of points (weights/points.h), and of smaller numbers if there are many tokens.
//
// A few chunks at a time are converted in the nearest cache, once for all tokens.
//
// Besides the members in quantized_product.h, `Lanes` has
//   expanded_groups, expanded_tile(n)      the most row groups multiplied together, if there are many tokens, and by
//                                          how many tokens at a time if there are n of them
//   expands(layout), expanded_from         whether converting its numbers pays, and from how many tokens on
//   load_words<bytes>(p)                   a word of each row as an integer
//   look_up<grid>(table, i, j, quads)      the digits, as quads of columns, of the points that i selects, then j
#pragma once
#include "matrix/quantized_product.h"

namespace puna {
namespace {

// The numbers that a grid's digits stand for, plus the grid's excess; entries beyond the digits are those of low ones.
constexpr Table table_of(Grid grid) {
    Table table{};
    const GridShape shape = shape_of(grid);
    for (int i = 0; i < 16; i++) {
        const int digit = i % (1 << shape.digit_bits);
        const bool low = i >> shape.digit_bits & 1;
        table.entries[i] = static_cast<uint8_t>(digit_number(grid, digit, low) + shape.excess);
    }
    return table;
}

template <Grid grid>
constexpr Table grid_table = table_of(grid);

// The indices of point i of a section, including the bits that IQ1 has above them.
template <class Lanes, Layout layout, int i>
PUNA_INLINE typename Lanes::Ints point_indices(const uint8_t* section, typename Lanes::Ints words) {
    constexpr PointOffsets from = point_offsets_of(layout, Lanes::rows);
    constexpr int bits = from.high_bits(), up = 8 - bits * i;   // distance of the bits from their place
    const auto low = Lanes::template load_words<1>(section + i * Lanes::rows);
    if constexpr (bits == 0) return low;
    typename Lanes::Ints high;
    if constexpr (up >= 0) high = Lanes::template shift_ints_left<up>(words);
    else high = Lanes::template shift_ints_right<-up>(words);
    return Lanes::int_or(low, Lanes::int_and(high, Lanes::splat(((1 << bits) - 1) << 8)));
}

// The numbers of 64 columns, [quads][R][4].
template <class Lanes, Layout layout>
PUNA_INLINE void expand_section(const PointTable& table, const uint8_t* section, uint8_t* numbers) {
    constexpr PointOffsets from = point_offsets_of(layout, Lanes::rows);
    constexpr Grid grid = from.format.grid;
    constexpr GridShape shape = shape_of(grid);
    constexpr int vector = 4 * Lanes::rows, quads = shape.coordinates / 4, top = 1 << shape.digit_bits;
    auto words = Lanes::splat(0);
    if constexpr (from.word() > 0) words = Lanes::template load_words<from.word()>(section + from.high());
    unrolled<from.points() / 2>([&](auto pair) __attribute__((always_inline)) {
        constexpr int i = 2 * decltype(pair)::value;
        typename Lanes::Ints indices[2] = {point_indices<Lanes, layout, i>(section, words),
                                           point_indices<Lanes, layout, i + 1>(section, words)};
        typename Lanes::Bytes low[2] = {};   // the bits of a point that say which numbers are low
        if constexpr (!shape.signs) {
            for (int j = 0; j < 2; j++) {
                const auto twelfth = Lanes::template shift_ints_left<20>(indices[j]);   // now the sign bit
                low[j] = Lanes::template bit_and<top>(
                    Lanes::as_bytes(Lanes::template shift_signed_right<31>(twelfth)));
                indices[j] = Lanes::int_and(indices[j], Lanes::splat(max_points - 1));
            }
        }
        typename Lanes::Bytes digits[2 * quads];
        Lanes::template look_up<grid>(table, indices[0], indices[1], digits);
        unrolled<2 * quads>([&](auto each) __attribute__((always_inline)) {
            constexpr int q = decltype(each)::value, quad = i * quads + q;   // of the section
            auto is_low = low[q / quads];
            if constexpr (shape.signs) {
                const auto signs = Lanes::load(section + from.signs() + quad / 8 * vector);
                is_low = Lanes::template bit_and<top>(Lanes::template shift_left<shape.digit_bits - quad % 8>(signs));
            }
            Lanes::store_bytes(numbers + quad * vector,
                               Lanes::lookup(Lanes::bit_or(digits[q], is_low), grid_table<grid>.entries));
        });
    });
}

// Converts a chunk of points to 8-bit numbers.
template <class Lanes, Layout layout>
PUNA_INLINE void expand_points(const PointTable& table, const uint8_t* packed, uint8_t* chunk,
                               PrefetchDistance distance) {
    constexpr PointOffsets from = point_offsets_of(layout, Lanes::rows);
    constexpr Offsets to = offsets_of(bytes_of(layout), Lanes::rows);
    constexpr int R = Lanes::rows;
    prefetch(packed, from.sections(), distance);
    const auto d = Lanes::mul(Lanes::load_halves(packed), Lanes::splat(shape_of(from.format.grid).unit));
    Lanes::store(reinterpret_cast<float*>(chunk), d);
    const uint8_t* nibbles = packed + from.scales();
    for (int i = 0; i < to.scale_bytes() / 2; i++) {
        chunk[to.scales() + 2 * i] = static_cast<uint8_t>(2 * (nibbles[i] & 15) + 1);
        chunk[to.scales() + 2 * i + 1] = static_cast<uint8_t>(2 * (nibbles[i] >> 4) + 1);
    }
    for (int s = 0; s < 4; s++) {
        const uint8_t* section = packed + from.sections() + s * from.section();
        prefetch(section, from.section(), distance);
        expand_section<Lanes, layout>(table, section, chunk + to.numbers() + s * 64 * R);
    }
}

// Converts a chunk of numbers to 8-bit ones.
template <class Lanes, Layout layout>
PUNA_INLINE void expand_numbers(const uint8_t* packed, uint8_t* chunk, PrefetchDistance distance) {
    constexpr Offsets from = offsets_of(layout, Lanes::rows), to = offsets_of(bytes_of(layout), Lanes::rows);
    static_assert(from.numbers() == to.numbers());
    prefetch(packed, from.numbers(), distance);
    __builtin_memcpy(chunk, packed, from.numbers());
    for (int b = 0; b < 8; b++) {
        const uint8_t* low = packed + from.numbers() + b * from.low_plane();
        const uint8_t* high = packed + from.high_numbers() + b * (from.planes() - from.low_plane());
        uint8_t* numbers = chunk + to.numbers() + b * to.planes();
        prefetch(packed + from.numbers() + b * from.planes(), from.planes(), distance);
        unrolled<8>([&](auto index) __attribute__((always_inline)) {
            constexpr int i = decltype(index)::value;
            Lanes::store_bytes(numbers + i * 4 * Lanes::rows, quad<Lanes, layout, i>(low, high));
        });
    }
}

// Adds the products of `count` chunks of G row groups, which are `stride` bytes apart, to y; the first chunk overwrites
// it.
template <class Lanes, Layout layout, int T, int G>
void add_chunks(const uint8_t* chunks, int64_t stride, int64_t count, bool first, const void* const* x, int64_t offset,
                int64_t step, float* const* y, int64_t row) {
    typename Lanes::Floats totals[G][T];
    const SuperActivations* a[T];
    for (int t = 0; t < T; t++) {
        for (int g = 0; g < G; g++) {
            totals[g][t] = first ? Lanes::splat(0.0f) : Lanes::load_floats(y[t] + row + g * Lanes::rows);
        }
        a[t] = reinterpret_cast<const SuperActivations*>(static_cast<const char*>(x[t]) + offset);
    }
    add_super_blocks<Lanes, layout, T, G>(chunks, stride, count, a, step, totals, {});
    for (int t = 0; t < T; t++) {
        for (int g = 0; g < G; g++) Lanes::store(y[t] + row + g * Lanes::rows, totals[g][t]);
    }
}

template <class Lanes, Layout layout, int G, int... T>
constexpr auto tiles_of_chunks(std::integer_sequence<int, T...>) {
    struct Tiles {
        decltype(&add_chunks<Lanes, layout, 1, 1>) of[sizeof...(T)];
    };
    return Tiles{{add_chunks<Lanes, layout, T + 1, G>...}};
}

template <class Lanes, Layout layout, int G>
constexpr auto chunk_tiles =
    tiles_of_chunks<Lanes, layout, G>(std::make_integer_sequence<int, Lanes::expanded_tile(G)>());

// The function for some row groups and tokens.
template <class Lanes, Layout layout>
PUNA_INLINE auto chunks_product(int64_t groups, int64_t tokens) {
    static_assert(Lanes::expanded_groups == 1 || Lanes::expanded_groups == 3);
    if constexpr (Lanes::expanded_groups == 3) {
        if (groups == 3) return chunk_tiles<Lanes, layout, 3>.of[tokens - 1];
        if (groups == 2) return chunk_tiles<Lanes, layout, 2>.of[tokens - 1];
    }
    return chunk_tiles<Lanes, layout, 1>.of[tokens - 1];
}

// Fetches `count` rows of chunks, `stride` bytes apart, into the second-level cache, a part at each of `steps`.
class ChunkPrefetcher {
public:
    ChunkPrefetcher(const uint8_t* first, int64_t stride, int64_t count, int64_t bytes, int64_t steps)
        : first_(first), stride_(stride), lines_((bytes + 63) / 64), left_(count * lines_),
          each_((left_ + steps - 1) / steps) {}

    PUNA_INLINE void prefetch() {
        for (int64_t i = 0; i < each_ && left_ > 0; i++, left_--) {
            __builtin_prefetch(first_ + 64 * line_, 0, 2);
            if (++line_ == lines_) line_ = 0, first_ += stride_;
        }
    }

private:
    const uint8_t* first_;
    int64_t stride_, lines_, left_, each_, line_ = 0;
};

// A WideFunction.
template <class Lanes, Layout layout>
void expanded_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                      int64_t step, float* const* y, int64_t tokens, uint8_t* room, PrefetchDistance distance) {
    constexpr Grid grid = format_of(layout).grid;
    constexpr int64_t packed = grid == Grid::none ? offsets_of(layout, Lanes::rows).super_block()
                                                  : point_offsets_of(layout, Lanes::rows).chunk();
    constexpr Layout bytes = bytes_of(layout);
    constexpr int64_t expanded = offsets_of(bytes, Lanes::rows).super_block();
    constexpr int G = Lanes::expanded_groups;
    const auto expand = [&](const uint8_t* from, uint8_t* to, PrefetchDistance ahead) {
        if constexpr (grid == Grid::none) expand_numbers<Lanes, layout>(from, to, ahead);
        else expand_points<Lanes, layout>(point_table(grid), from, to, ahead);
    };
    // Few tokens: one pass over the weights. More: a few row groups at a time for each tile of tokens; never one of four
    // alone, which would load activations more often.
    constexpr int few = 4, most = 6;   // chunks
    static_assert(most % G == 0 && most * expanded <= wide_room);
    const bool once = tokens <= Lanes::tile;
    const auto together = [&](int64_t left) -> int64_t {
        if (once || G == 1) return 1;
        return left == 4 ? 2 : left < G ? left : G;
    };
    const int64_t chunks = columns / chunk_columns;
    int64_t count;
    for (int64_t first = 0; first < groups; first += count) {
        count = together(groups - first);
        const int64_t length = once ? few : most / count, tile = Lanes::expanded_tile(static_cast<int>(count));
        int64_t c = 0;
        do {
            const int64_t here = chunks - c < length ? chunks - c : length;
            const bool fetched = !once && (first > 0 || c > 0);   // while the previous chunks were multiplied
            for (int64_t g = 0; g < count; g++) {
                for (int64_t i = 0; i < here; i++) {
                    expand(weights + (first + g) * stride + (c + i) * packed, room + (g * length + i) * expanded,
                           fetched ? PrefetchDistance{} : distance);
                }
            }
            // The next chunks: of the same row groups, or the first ones of the next.
            const bool same = c + length < chunks;
            const int64_t next_group = same ? first : first + count, next_chunk = same ? c + length : 0;
            const int64_t next_count = once || next_group == groups ? 0 : same ? count : together(groups - next_group);
            const int64_t next_length = next_count > 0 ? most / next_count : 0, left = chunks - next_chunk;
            ChunkPrefetcher next(weights + next_group * stride + next_chunk * packed, stride, next_count,
                                 (left < next_length ? left : next_length) * packed, (tokens + tile - 1) / tile);
            for (int64_t t = 0; t < tokens; t += tile) {
                next.prefetch();
                chunks_product<Lanes, bytes>(count, tokens - t < tile ? tokens - t : tile)(
                    room, length * expanded, here, c == 0, x + t, c * step, step, y + t, first * Lanes::rows);
            }
        } while ((c += length) < chunks);
    }
}

template <class Lanes, Layout layout>
void set_expanded(MatrixKernels& kernels, int from) {
    constexpr int index = static_cast<int>(layout);
    kernels.wide[index] = expanded_product<Lanes, layout>;
    kernels.wide_from[index] = from;
}

// Fills in the table's products of points.
template <class Lanes, int index = 0>
void set_points(MatrixKernels& kernels) {
    if constexpr (index < layout_count) {
        constexpr Layout layout = static_cast<Layout>(index);
        if constexpr (format_of(layout).grid != Grid::none) set_expanded<Lanes, layout>(kernels, 1);
        set_points<Lanes, index + 1>(kernels);
    }
}

// Fills in the products of numbers for many tokens, where converting them pays.
template <class Lanes, int index = 0>
void set_expanded_numbers(MatrixKernels& kernels) {
    if constexpr (index < layout_count) {
        constexpr Layout layout = static_cast<Layout>(index);
        if constexpr (Lanes::expands(layout)) set_expanded<Lanes, layout>(kernels, Lanes::expanded_from);
        set_expanded_numbers<Lanes, index + 1>(kernels);
    }
}

}  // namespace
}  // namespace puna
