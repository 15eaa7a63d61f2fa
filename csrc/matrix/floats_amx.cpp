// F16 and BF16 with AMX: 16 tokens times 16 rows times 32 columns of bfloat16 numbers per instruction.
//
// An f16 number is exactly the sum of two bfloat16 ones, its upper 8 bits and the rest. Activations are rounded to two
// (SplitBlock), with a relative error of at most 2^-17. So
//   w x = (w_high x_high + w_low x_low) + (w_low x_high + w_high x_low)
// where each bracket has its own tile of sums. A single token uses the same code, since no other kernel adds in the
// order of the tiles.
//
// A value that is not finite makes all results of its token, or of its row of weights, NaN or infinite. Activations
// below 1e-33 lose bits, and products below 2^-126 count as zero.
#include "matrix/wide_amx.h"

namespace puna {
namespace {

template <Layout layout>
struct Halves {
    using Activation = SplitBlock;
    static constexpr int tokens = 32, columns = SplitBlock::columns, steps = columns / 32;
    static constexpr bool has_low = layout == Layout::f16;

    struct alignas(64) Numbers {
        uint32_t high[columns / 2][R], low[columns / 2][R];   // pairs of columns
    };
    struct alignas(64) Sums {
        float of[2][tokens][R];
    };

    static int64_t bytes(int columns) { return columns * 2 * R; }

    // Tile registers: two sums each for the first 16 tokens and the others, activations of both, numbers.
    static constexpr int sums_tile = 0, x_tile = 4, w_high = 6, w_low = 7;
    static TileShapes shapes(int rows) {
        TileShapes shapes;
        for (int tile = 0; tile < w_high; tile++) shapes.set(tile, rows, 64);
        shapes.set(w_high, 16, 64);
        shapes.set(w_low, 16, 64);
        return shapes;
    }

    // Columns beyond the last are zero.
    static PUNA_INLINE void unpack(const Job<Halves>& job, int step) {
        for (int pair = 16 * step; pair < 16 * step + 16; pair++) {
            const uint8_t* p = job.chunk + pair * 4 * R;
            __builtin_prefetch(p + 2048);   // measured: twice as fast as without
            const bool first = 2 * pair < job.columns, second = 2 * pair + 1 < job.columns;
            const __m256i none = _mm256_setzero_si256();
            const __m256i even = first ? Avx512::load_half(p) : none;
            const __m256i odd = second ? Avx512::load_half(p + 2 * R) : none;
            if constexpr (has_low) {
                const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
                const __m512 a = _mm512_cvtph_ps(even), b = _mm512_cvtph_ps(odd);
                const __m512i a_high = _mm512_and_si512(_mm512_castps_si512(a), upper);
                const __m512i b_high = _mm512_and_si512(_mm512_castps_si512(b), upper);
                const __m512 a_low = _mm512_sub_ps(a, _mm512_castsi512_ps(a_high));
                const __m512 b_low = _mm512_sub_ps(b, _mm512_castsi512_ps(b_high));
                _mm512_store_si512(job.numbers->high[pair], beside(a_high, b_high));
                _mm512_store_si512(job.numbers->low[pair],
                                   beside(_mm512_castps_si512(a_low), _mm512_castps_si512(b_low)));
            } else {
                _mm512_store_si512(job.numbers->high[pair], _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                   _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16)));
            }
        }
    }

    // Two bfloat16 numbers, still as float32s, in one lane.
    static PUNA_INLINE __m512i beside(__m512i first, __m512i second) {
        return _mm512_or_si512(_mm512_srli_epi32(first, 16), second);
    }

    // Multiplies tokens from 16 * `half` on, if there are any, by the 32 columns whose numbers are in their tiles.
    template <int half>
    static PUNA_INLINE void multiply_high(const Job<Halves>& job, int step) {
        constexpr int large = sums_tile + 2 * half, small = large + 1, x = x_tile + half;
        if (job.tokens <= tile_tokens * half) return;
        load_tile<x>(job.x[tile_tokens * half].high + 32 * step, sizeof(SplitBlock));
        multiply_bfloat_tiles<large, x, w_high>();
        if constexpr (has_low) multiply_bfloat_tiles<small, x, w_low>();
    }
    template <int half>
    static PUNA_INLINE void multiply_low(const Job<Halves>& job, int step) {
        constexpr int large = sums_tile + 2 * half, small = large + 1, x = x_tile + half;
        if (job.tokens <= tile_tokens * half) return;
        load_tile<x>(job.x[tile_tokens * half].low + 32 * step, sizeof(SplitBlock));
        if constexpr (has_low) multiply_bfloat_tiles<large, x, w_low>();
        multiply_bfloat_tiles<small, x, w_high>();
    }

    template <int half>
    static PUNA_INLINE void store(const Job<Halves>& job) {
        constexpr int sums = sums_tile + 2 * half;
        if (job.tokens <= tile_tokens * half) return;
        store_tile<sums>(job.sums->of[0][tile_tokens * half], 4 * R);
        store_tile<sums + 1>(job.sums->of[1][tile_tokens * half], 4 * R);
    }

    // Adds the sums of 8 tokens to their totals.
    static PUNA_INLINE void finish(const Job<Halves>& job, int from) {
        for (int t = from; t < from + 8 && t < job.tokens; t++) {
            const __m512 sum = _mm512_add_ps(_mm512_load_ps(job.sums->of[0][t]), _mm512_load_ps(job.sums->of[1][t]));
            _mm512_store_ps(job.totals[t], _mm512_add_ps(_mm512_load_ps(job.totals[t]), sum));
        }
    }

    static void run(const Job<Halves>& job, const Job<Halves>& before) {
        const int needed = (job.columns + 31) / 32;
        if (job.unpacks) unpack(job, 0);
        if (job.tokens > 0) {
            unrolled<4>([](auto tile) __attribute__((always_inline)) { zero_tile<decltype(tile)::value>(); });
        }
        for (int step = 0; step < steps; step++) {
            if (step < needed) {
                if (job.unpacks && step + 1 < needed) unpack(job, step + 1);
                load_tile<w_high>(job.numbers->high[16 * step], 4 * R);
                if constexpr (has_low) load_tile<w_low>(job.numbers->low[16 * step], 4 * R);
                // An instruction waits for the previous one with the same sums, and all later ones wait behind it.
                multiply_high<0>(job, step);
                multiply_high<1>(job, step);
                multiply_low<0>(job, step);
                multiply_low<1>(job, step);
            }
            finish(before, 8 * step);
        }
        store<0>(job);
        store<1>(job);
    }
};

// The nearest bfloat16 number to each value, as a float32; for values beyond the largest bfloat16 number, that one.
PUNA_INLINE __m512i rounded(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x), upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i to_even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), to_even);
    const __mmask16 in_range = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f7f8000));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    const __m512i up = _mm512_mask_add_epi32(bits, in_range, bits, half);
    return _mm512_and_si512(_mm512_mask_or_epi32(up, nan, up, _mm512_set1_epi32(0x00400000)), upper);
}

void split(const float* x, int64_t columns, SplitBlock* block) {
    for (int64_t i = 0; i < SplitBlock::columns; i += 16) {
        const int64_t left = columns - i;
        const __mmask16 there = static_cast<__mmask16>(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
        const __m512 v = _mm512_maskz_loadu_ps(there, x + i);
        const __m512i high = rounded(v);
        const __mmask16 finite = _mm512_cmplt_epi32_mask(
            _mm512_and_si512(high, _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f800000));
        const __m512i low = rounded(_mm512_maskz_sub_ps(finite, v, _mm512_castsi512_ps(high)));
        const auto put = [](uint16_t* to, __m512i bits) {
            _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
        };
        put(block->high + i, high);
        put(block->low + i, low);
    }
}

template <Layout layout>
void set_halves(MatrixKernels& kernels) {
    kernels.wide[static_cast<int>(layout)] = wide_product<Halves<layout>>;
    kernels.wide_from[static_cast<int>(layout)] = 1;
}

}  // namespace

void amx::add_floats(MatrixKernels& kernels) {
    kernels.split = split;
    set_halves<Layout::f16>(kernels);
    set_halves<Layout::bf16>(kernels);
}

}  // namespace puna
