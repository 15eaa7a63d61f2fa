// Blocks of 32 with AMX: 16 tokens times 16 rows times 32 columns per instruction.
//
// Every block has its own float factor, so a tile's integers are read after each block. The excess of numbers is
// subtracted beforehand: all are signed bytes then, and the integers are exactly those of the AVX-512 kernels.
#include "matrix/wide_amx.h"

namespace puna {
namespace {

template <Layout layout>
struct Blocks {
    using Activation = BlockActivations;
    static constexpr int tokens = 16, blocks = 8;
    static constexpr Offsets offsets = offsets_of(layout, R);

    struct alignas(64) Numbers {
        uint8_t of[blocks][8][4 * R];   // [block][quad]
    };
    struct alignas(64) Sums {
        int32_t of[blocks][tokens][R];
        // Loads wait for earlier stores at a distance of a multiple of 4 KiB, and one job's sums are loaded while
        // another's are stored.
        int32_t apart[512];
    };

    static int64_t bytes(int columns) { return columns / 32 * offsets.block(); }

    // Tile registers: two each for sums, tokens and numbers, used in turn.
    static TileShapes shapes(int rows) {
        TileShapes shapes;
        for (int turn = 0; turn < 2; turn++) {
            shapes.set(turn, rows, 64);
            shapes.set(2 + turn, rows, 32);
            shapes.set(4 + turn, 8, 64);
        }
        return shapes;
    }

    static PUNA_INLINE void unpack(const Job<Blocks>& job, int b) {
        constexpr int excess = puna::excess<Avx512, layout>;
        const uint8_t* low = job.chunk + job.columns / 32 * offsets.header() + b * offsets.planes();
        const uint8_t* high = low + offsets.low_plane();
        // Memory fetches the next chunk while tiles multiply this one.
        prefetch(job.chunk + b * offsets.block(), offsets.block(), job.columns / 32 * offsets.block());
        unrolled<8>([&](auto index) __attribute__((always_inline)) {
            constexpr int i = decltype(index)::value;
            __m512i v = quad<Avx512, layout, i>(low, high);
            if constexpr (excess != 0) v = _mm512_sub_epi8(v, _mm512_set1_epi8(static_cast<char>(excess)));
            _mm512_store_si512(job.numbers->of[b][i], v);
        });
    }

    template <int b>
    static PUNA_INLINE void multiply(const Job<Blocks>& job) {
        constexpr int sums = b % 2, x = 2 + sums, numbers = 4 + sums;
        zero_tile<sums>();
        load_tile<x>(job.x->q + 32 * b, sizeof(BlockActivations));
        load_tile<numbers>(job.numbers->of[b], 4 * R);
        multiply_tiles<true, sums, x, numbers>();
        store_tile<sums>(job.sums->of[b], 4 * R);
    }

    template <int b, int T>
    static PUNA_INLINE void finish(const Job<Blocks>& job, __m512* totals) {
        const BlockActivations* a[T];
        __m512i sums[T];
        each_token<T>([&](auto t) __attribute__((always_inline)) {
            a[t] = job.x + t;
            sums[t] = _mm512_load_si512(job.sums->of[b][t]);
        });
        const uint8_t* factors = job.chunk + b * offsets.factors();
        const uint8_t* mins = factors + job.columns / 32 * offsets.factors();
        finish_block<Avx512, layout, T>(factors, mins, a, b, sums, totals);
    }

    // T is 8 or 16: at least as many tokens as `before` has.
    template <int T>
    static PUNA_INLINE void run(const Job<Blocks>& job, const Job<Blocks>& before) {
        const int now = job.columns / 32, earlier = before.columns / 32;
        __m512 totals[T];
        if (earlier > 0) {
            each_token<T>([&](auto t) __attribute__((always_inline)) { totals[t] = _mm512_load_ps(before.totals[t]); });
        }
        if (job.unpacks) unpack(job, 0);
        unrolled<blocks>([&](auto index) __attribute__((always_inline)) {
            constexpr int b = decltype(index)::value;
            if (job.unpacks && b + 1 < now) unpack(job, b + 1);
            if (b < now) multiply<b>(job);
            if (b < earlier) finish<b, T>(before, totals);
        });
        if (earlier > 0) {
            each_token<T>([&](auto t) __attribute__((always_inline)) { _mm512_store_ps(before.totals[t], totals[t]); });
        }
    }

    static void run(const Job<Blocks>& job, const Job<Blocks>& before) {
        if (before.tokens > 8) run<16>(job, before);
        else run<8>(job, before);
    }
};

}  // namespace

void amx::add_blocks(MatrixKernels& kernels) {
    for_layouts<Scaling::per_32>([&](auto each) {
        constexpr Layout layout = decltype(each)::value;
        kernels.wide[static_cast<int>(layout)] = wide_product<Blocks<layout>>;
        kernels.wide_from[static_cast<int>(layout)] = 9;   // fewer are memory-bound
    });
}

}  // namespace puna
