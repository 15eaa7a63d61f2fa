// The AMX kernels' way through a matrix, whatever its numbers are.
//
// A job is one chunk of columns of one row group times a few tokens. Tiles take long to return their sums, so a job's
// sums are added to the totals while tiles multiply the next job's: `Kernel::run` alternates between the two, step by
// step. Numbers are unpacked once per chunk, by the first job that needs them, also in steps, so that memory is always
// busy.
//
// Jobs are ordered so that each reads from the nearest cache: two row groups' numbers stay in the first level while
// tokens pass by; eight row groups' totals, and the tokens of a chunk, in the second.
#pragma once
#include "matrix/lanes_avx512.h"
#include "matrix/quantized_product.h"
#include "matrix/sets.h"
#include "matrix/tiles_amx.h"

namespace puna {
namespace {

constexpr int R = Avx512::rows;
constexpr int tile_tokens = 16;   // rows of a tile

// A Kernel has
//   Activation             a token's block of activations: a chunk has as many columns
//   tokens                 the most of a job: 16 or 32
//   Numbers, Sums          an unpacked chunk, and the sums of a job's tiles
//   bytes(columns)         of a packed chunk
//   shapes(rows)           of the tile registers, for `rows` tokens
//   run(job, before)       multiplies `job` and adds the sums of `before` to its totals; either may be empty
template <class Kernel>
struct Job {
    int tokens, columns;        // 0 if empty
    bool unpacks;               // these numbers have not been unpacked yet
    const uint8_t* chunk;
    const typename Kernel::Activation* x;
    typename Kernel::Numbers* numbers;
    typename Kernel::Sums* sums;
    float (*totals)[R];         // for each token
};

constexpr int groups_together = 8, groups_unpacked = 2;

template <class Kernel>
struct Room {
    typename Kernel::Numbers numbers[groups_unpacked];
    typename Kernel::Sums sums[2];
    float totals[groups_together][token_block][R];
    typename Kernel::Activation gathered[token_block + rows_behind];
};

// Whether tokens are contiguous.
template <class Activation>
bool neighbours(const void* const* x, int64_t tokens) {
    for (int64_t t = 1; t < tokens; t++) {
        if (static_cast<const Activation*>(x[t]) != static_cast<const Activation*>(x[0]) + t) return false;
    }
    return true;
}

// Copies the tokens' activations, `offset` bytes from their begin, next to each other.
template <class Activation>
const Activation* gathered(const void* const* x, int64_t offset, int64_t tokens, Activation* to) {
    for (int64_t t = 0; t < tokens; t++) {
        const char* from = static_cast<const char*>(x[t]) + offset;
        for (size_t i = 0; i < sizeof(Activation); i += 64) {
            _mm512_store_si512(reinterpret_cast<char*>(to + t) + i, _mm512_loadu_si512(from + i));
        }
    }
    return to;
}

template <class Kernel>
void wide_product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
                  int64_t step, float* const* y, int64_t tokens, uint8_t* memory,
                  PrefetchDistance) {
    using Activation = typename Kernel::Activation;
    static_assert(sizeof(Room<Kernel>) <= wide_room);
    auto& room = *reinterpret_cast<Room<Kernel>*>(memory);
    const UseTiles use(Kernel::shapes(tokens < tile_tokens ? static_cast<int>(tokens) : tile_tokens));
    const bool in_order = neighbours<Activation>(x, tokens);
    // With few tokens, reading weights dominates: as one stream.
    const int64_t most = tokens <= Kernel::tokens ? 1 : groups_together;
    for (int64_t first = 0; first < groups; first += most) {
        const int64_t together = groups - first < most ? groups - first : most;
        for (int64_t g = 0; g < together; g++) {
            for (int64_t t = 0; t < tokens; t++) _mm512_store_ps(room.totals[g][t], _mm512_setzero_ps());
        }
        const uint8_t* chunk = weights + first * stride;
        const Activation* rows = nullptr;
        Job<Kernel> before{};
        bool odd = false;
        for (int64_t k = 0; k < columns; k += Activation::columns) {
            const int here = columns - k < Activation::columns ? static_cast<int>(columns - k) : Activation::columns;
            const int64_t offset = k / Activation::columns * step;
            if (in_order) {
                rows = reinterpret_cast<const Activation*>(static_cast<const char*>(x[0]) + offset);
            } else {
                Kernel::run({}, before);   // which may still read the numbers of the previous chunk
                before = {};
                rows = gathered(x, offset, tokens, room.gathered);
            }
            for (int64_t begin = 0; begin < together; begin += groups_unpacked) {
                const int64_t end = together - begin < groups_unpacked ? together : begin + groups_unpacked;
                for (int64_t t = 0; t < tokens; t += Kernel::tokens) {
                    const int count = tokens - t < Kernel::tokens ? static_cast<int>(tokens - t) : Kernel::tokens;
                    for (int64_t g = begin; g < end; g++, odd = !odd) {
                        const Job<Kernel> job = {count, here, t == 0, chunk + g * stride, rows + t,
                                                 &room.numbers[g - begin], &room.sums[odd], room.totals[g] + t};
                        Kernel::run(job, before);
                        before = job;
                    }
                }
            }
            chunk += Kernel::bytes(here);
        }
        Kernel::run({}, before);
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t g = 0; g < together; g++) {
                _mm512_storeu_ps(y[t] + (first + g) * R, _mm512_load_ps(room.totals[g][t]));
            }
        }
    }
}

}  // namespace
}  // namespace puna
