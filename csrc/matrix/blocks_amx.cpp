// Blocks of 32 with AMX: 16 tokens times 16 rows times 32 columns in an instruction.
//
// Every block has a float factor of its own, so a tile's integers are taken out after each. What numbers are too
// large by is taken away from them beforehand: all are signed bytes then, and the integers are exactly those of
// the AVX-512 kernels.
#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx512.h"
#include "matrix/quantized_product.h"
#include "matrix/tiles_amx.h"

namespace puna {
namespace {

constexpr int R = Avx512::rows;

struct alignas(64) Buffers {
    uint8_t numbers[8][8][4 * R];        // [block][quad]
    int32_t sums[2][wide_tile][R];       // one is filled while the other is read
    int8_t tokens[wide_tile][chunk_columns];
    float totals[token_block][R];        // results lie far apart: they are written once
};

template <Layout layout>
PUNA_INLINE void unpack_block(const uint8_t* low, uint8_t (*numbers)[4 * R]) {
    constexpr int excess = puna::excess<Avx512, layout>;
    const uint8_t* high = low + offsets_of(layout, R).low_plane();
    unrolled<8>([&](auto index) __attribute__((always_inline)) {
        constexpr int i = decltype(index)::value;
        __m512i v = quad<Avx512, layout, i>(low, high);
        if constexpr (excess != 0) v = _mm512_sub_epi8(v, _mm512_set1_epi8(static_cast<char>(excess)));
        _mm512_store_si512(numbers[i], v);
    });
}

// Tile registers: two each of sums, tokens and numbers, used in turn.
template <int turn>
PUNA_INLINE void multiply_block(const TokenRows& x, int b, Buffers& buffers) {
    constexpr int sums = turn, tokens = 2 + turn, numbers = 4 + turn;
    zero_tile<sums>();
    load_tile<tokens>(x.first + 32 * b, x.stride);
    load_tile<numbers>(buffers.numbers[b], 4 * R);
    multiply_tiles<true, sums, tokens, numbers>();
    store_tile<sums>(buffers.sums[turn], 4 * R);
}

// Chunk k, of `blocks` blocks, with T tokens (8 or 16), of which `count` are there: adds to their totals.
template <Layout layout, int T>
void tile_chunk(const uint8_t* factors, int blocks, const void* const* x, int64_t k, int count,
                            float (*to)[R], Buffers& buffers) {
    constexpr Offsets offsets = offsets_of(layout, R);
    const TokenRows rows(x, k, count, buffers.tokens);
    const ActivationBlock* a[T];
    __m512 totals[T];
    for (int t = 0; t < T; t++) {
        const int at = t < count ? t : count - 1;
        a[t] = static_cast<const ActivationBlock*>(x[at]) + k;
        totals[t] = k == 0 ? _mm512_setzero_ps() : _mm512_load_ps(to[at]);
    }
    const auto finish = [&](int b) __attribute__((always_inline)) {
        __m512i sums[T];
        for (int t = 0; t < T; t++) sums[t] = _mm512_load_si512(buffers.sums[b % 2][t]);
        finish_block<Avx512, layout, T>(factors + offsets.factors() * b, factors + offsets.factors() * (blocks + b), a, b,
                                        sums, totals);
    };
    multiply_block<0>(rows, 0, buffers);
    for (int b = 0; b < blocks; b += 2) {   // tiles work on a block while vectors finish the one before
        if (b + 1 < blocks) multiply_block<1>(rows, b + 1, buffers);
        finish(b);
        if (b + 2 < blocks) multiply_block<0>(rows, b + 2, buffers);
        if (b + 1 < blocks) finish(b + 1);
    }
    for (int t = 0; t < T && t < count; t++) _mm512_store_ps(to[t], totals[t]);
}

template <Layout layout>
void wide_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                  float* const* y, int64_t tokens) {
    constexpr Offsets offsets = offsets_of(layout, R);
    TileShapes shapes;
    for (int turn = 0; turn < 2; turn++) {
        shapes.set(turn, 16, 64);
        shapes.set(2 + turn, 16, 32);
        shapes.set(4 + turn, 8, 64);
    }
    const UseTiles use(shapes);
    Buffers buffers;
    for (int64_t group = 0; group < groups; group++) {
        const uint8_t* chunk = weights + group * stride;
        for (int64_t begin = 0; begin < columns; begin += chunk_columns) {
            const int blocks = columns - begin < chunk_columns ? static_cast<int>((columns - begin) / 32) : 8;
            const int bytes = blocks * offsets.block();
            const uint8_t* numbers = chunk + blocks * offsets.header();
            prefetch(chunk, bytes, bytes);   // memory works on the next chunk while tiles multiply this one
            for (int b = 0; b < blocks; b++) unpack_block<layout>(numbers + b * offsets.planes(), buffers.numbers[b]);
            for (int64_t t = 0; t < tokens; t += wide_tile) {
                const int count = tokens - t < wide_tile ? static_cast<int>(tokens - t) : wide_tile;
                const auto run = count > 8 ? tile_chunk<layout, 16> : tile_chunk<layout, 8>;
                run(chunk, blocks, x + t, begin / chunk_columns, count, buffers.totals + t, buffers);
            }
            chunk += bytes;
        }
        for (int64_t t = 0; t < tokens; t++) {
            _mm512_storeu_ps(y[t] + group * R, _mm512_load_ps(buffers.totals[t]));
        }
    }
}

}  // namespace

void add_blocks_amx(MatrixKernels& kernels) {
    for_layouts<Scaling::per_32>([&](auto each) {
        constexpr Layout layout = decltype(each)::value;
        kernels.wide[static_cast<int>(layout)] = wide_product<layout>;
    });
}

}  // namespace puna
