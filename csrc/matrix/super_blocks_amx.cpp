// Super-blocks with AMX: 16 tokens times 16 rows times 64 columns per instruction.
//
// Separate scales for each 16 or 32 would prevent tiles from adding up a whole chunk of 256 columns, so numbers are
// multiplied by their scales beforehand, once per chunk for all tokens. The products have more than 8 bits and are
// split into two planes of bytes, which tiles multiply one after the other:
//   sum = sum over plane 0 + 2^split * sum over plane 1
// All of it is integers: the sums are exactly those of the AVX-512 kernels that serve fewer tokens.
#include "matrix/wide_amx.h"

namespace puna {
namespace {

// Both halves of a 32-bit lane.
PUNA_INLINE __m512i doubled(__m512i low) { return _mm512_or_si512(_mm512_slli_epi32(low, 16), low); }

template <Layout layout>
struct SuperBlocks {
    using Activation = SuperActivations;
    static constexpr int tokens = 32, steps = 4, quads_per_step = 16;
    static constexpr Offsets offsets = offsets_of(layout, R);
    // Small unsigned numbers times half a scale's bits still fit a byte, so the scale is split. Other numbers are
    // multiplied to 16 bits, and the product is split. Numbers without scales are signed bytes already.
    static constexpr bool scales = format_of(layout).scales;
    static constexpr bool split_scales = scales && !format_of(layout).signed_scales;
    static constexpr int planes = layout == Layout::q2_k || !scales ? 1 : 2;   // 3 * 15 fits a byte as it is
    static constexpr int split = split_scales ? 3 : 6;

    struct alignas(64) Numbers {
        uint8_t of[planes][64][4 * R];   // [plane][quad]
    };
    struct alignas(64) Sums {
        int32_t of[planes][tokens][R];
    };

    static int64_t bytes(int) { return offsets.super_block(); }

    // Tile registers: sums of the first 16 tokens (plane 0, 1) and of the others, activations of both, planes.
    static constexpr int sums_tile = 0, tokens_tile = 4, numbers_tile = 6;
    static TileShapes shapes(int rows) {
        TileShapes shapes;
        for (int tile = 0; tile < numbers_tile; tile++) shapes.set(tile, rows, 64);
        for (int plane = 0; plane < 2; plane++) shapes.set(numbers_tile + plane, 16, 64);
        return shapes;
    }

    // The planes of block b, whose number is even or odd as `parity` says.
    template <int parity>
    static PUNA_INLINE void unpack_block(const uint8_t* chunk, int b, Numbers& numbers) {
        [[maybe_unused]] constexpr int excess = puna::excess<Avx512, layout>;   // split scales have none
        constexpr int group = format_of(layout).group;
        const uint8_t* low = chunk + offsets.numbers() + b * offsets.low_plane();
        const uint8_t* high = chunk + offsets.high_numbers() + b * (offsets.planes() - offsets.low_plane());
        const uint8_t* pairs = scale_pairs<Avx512, layout>(chunk, group == 32 ? b / 2 : b);
        // Memory fetches the next chunk while tiles multiply this one.
        prefetch(chunk + b * (offsets.super_block() / 8), offsets.super_block() / 8, offsets.super_block());
        unrolled<8>([&](auto index) __attribute__((always_inline)) {
            constexpr int i = decltype(index)::value, odd = group == 32 ? parity : i / 4;
            const __m512i q = quad<Avx512, layout, i>(low, high);
            const __m512i scale = Avx512::factors32<format_of(layout).signed_scales, odd>(pairs);
            uint8_t(*plane0)[4 * R] = numbers.of[0] + 8 * b + i;
            uint8_t(*plane1)[4 * R] = numbers.of[planes - 1] + 8 * b + i;
            if constexpr (!scales) {
                _mm512_store_si512(plane0, _mm512_sub_epi8(q, _mm512_set1_epi8(excess)));
            } else if constexpr (planes == 1) {
                _mm512_store_si512(plane0, _mm512_mullo_epi16(q, doubled(scale)));
            } else if constexpr (split_scales) {   // no product carries into the adjacent byte
                const __m512i below = _mm512_and_si512(scale, _mm512_set1_epi32((1 << split) - 1));
                _mm512_store_si512(plane0, _mm512_mullo_epi16(q, doubled(below)));
                _mm512_store_si512(plane1, _mm512_mullo_epi16(q, doubled(_mm512_srli_epi32(scale, split))));
            } else {
                const __m512i bytes = _mm512_set1_epi16(255), too_large = _mm512_set1_epi16(excess);
                const __m512i scale16 = doubled(_mm512_and_si512(scale, _mm512_set1_epi32(0xffff)));
                const __m512i even = _mm512_sub_epi16(_mm512_and_si512(q, bytes), too_large);
                const __m512i uneven = _mm512_sub_epi16(_mm512_srli_epi16(q, 8), too_large);
                const __m512i p = _mm512_mullo_epi16(even, scale16), r = _mm512_mullo_epi16(uneven, scale16);
                const __m512i below = _mm512_set1_epi16((1 << split) - 1);
                const auto together = [](__m512i a, __m512i b) { return _mm512_or_si512(a, _mm512_slli_epi16(b, 8)); };
                _mm512_store_si512(plane0, together(_mm512_and_si512(p, below), _mm512_and_si512(r, below)));
                _mm512_store_si512(plane1, together(_mm512_and_si512(_mm512_srai_epi16(p, split), bytes),
                                                    _mm512_srai_epi16(r, split)));
            }
        });
    }

    // The next part to multiply, as counted by `step`.
    static PUNA_INLINE void unpack(const Job<SuperBlocks>& job, int step) {
        unpack_block<0>(job.chunk, 2 * step, *job.numbers);
        unpack_block<1>(job.chunk, 2 * step + 1, *job.numbers);
    }

    // Multiplies tokens from 16 * `half` on, if there are any, by 64 columns of the planes in their tiles.
    template <int half>
    static PUNA_INLINE void multiply(const Job<SuperBlocks>& job, int step) {
        constexpr int sums = sums_tile + 2 * half;
        if (job.tokens <= tile_tokens * half) return;
        load_tile<tokens_tile + half>(job.x[tile_tokens * half].q + 64 * step, sizeof(SuperActivations));
        multiply_tiles<!split_scales, sums, tokens_tile + half, numbers_tile>();
        if constexpr (planes == 2) multiply_tiles<!split_scales, sums + 1, tokens_tile + half, numbers_tile + 1>();
    }

    template <int half>
    static PUNA_INLINE void store(const Job<SuperBlocks>& job) {
        constexpr int sums = sums_tile + 2 * half;
        if (job.tokens <= tile_tokens * half) return;
        store_tile<sums>(job.sums->of[0][tile_tokens * half], 4 * R);
        if constexpr (planes == 2) store_tile<sums + 1>(job.sums->of[1][tile_tokens * half], 4 * R);
    }

    // Adds the sums of 8 tokens to their totals.
    static PUNA_INLINE void finish(const Job<SuperBlocks>& job, int from) {
        if (job.tokens <= from) return;
        const SuperActivations* a[8];
        __m512i sums[8];
        __m512 totals[8];
        each_token<8>([&](auto t) __attribute__((always_inline)) {
            a[t] = job.x + from + t;
            sums[t] = _mm512_load_si512(job.sums->of[0][from + t]);
            if constexpr (planes == 2) {
                const __m512i above = _mm512_load_si512(job.sums->of[1][from + t]);
                sums[t] = _mm512_add_epi32(sums[t], _mm512_slli_epi32(above, split));
            }
            totals[t] = _mm512_load_ps(job.totals[from + t]);
        });
        finish_super_block<Avx512Exact, layout, 8>(job.chunk, a, sums, totals);
        each_token<8>([&](auto t) __attribute__((always_inline)) {
            _mm512_store_ps(job.totals[from + t], totals[t]);
        });
    }

    static void run(const Job<SuperBlocks>& job, const Job<SuperBlocks>& before) {
        if (job.tokens > 0) {
            if (job.unpacks) unpack(job, 0);
            unrolled<4>([](auto tile) __attribute__((always_inline)) { zero_tile<decltype(tile)::value>(); });
        }
        for (int step = 0; step < steps; step++) {
            if (job.tokens > 0) {
                if (job.unpacks && step + 1 < steps) unpack(job, step + 1);
                load_tile<numbers_tile>(job.numbers->of[0][quads_per_step * step], 4 * R);
                if constexpr (planes == 2) {
                    load_tile<numbers_tile + 1>(job.numbers->of[1][quads_per_step * step], 4 * R);
                }
                multiply<0>(job, step);
                multiply<1>(job, step);
            }
            // Its sums were stored last, so not immediately.
            if (step > 0) finish(before, 8 * (step - 1));
        }
        finish(before, 8 * (steps - 1));
        store<0>(job);
        store<1>(job);
    }
};

}  // namespace

void amx::add_super_blocks(MatrixKernels& kernels) {
    set_products<Avx512Exact, Scaling::per_256>(kernels);
    for_layouts<Scaling::per_256>([&](auto each) {
        constexpr Layout layout = decltype(each)::value;
        kernels.wide[static_cast<int>(layout)] = wide_product<SuperBlocks<layout>>;
        kernels.wide_from[static_cast<int>(layout)] = 9;   // fewer are memory-bound
    });
}

}  // namespace puna
