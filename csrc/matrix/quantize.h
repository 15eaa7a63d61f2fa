// Quantisation of activations to 8-bit integers, for any instruction set: a struct `Vectors` with
//   Bytes                  32 signed bytes
//   largest_bits(x, n)     the largest magnitude of n values (a multiple of 32) as bits: compared as integers,
//                          NaN > infinity > numbers
//   rounded(x, factor)     32 values times a factor as the nearest integers, which fit a byte
//   zeros()
//   store(bytes, to)
//   sums(bytes)            the sum of each 16 bytes
#pragma once
#include "matrix/kernels.h"
#include "matrix/quads.h"

namespace puna {
namespace {

struct SumsOf16 {
    int first, second;
};

// One token's values, with a scale for each `scaled` of them: 256 or 32.
template <class Vectors, int scaled>
void quantize(const float* x, int64_t columns, ActivationBlock<scaled>* blocks) {
    constexpr int excess = ActivationBlock<scaled>::excess;
    for (int64_t k = 0; k < columns; k += chunk_columns, x += chunk_columns, blocks++) {
        const int n = static_cast<int>(columns - k < chunk_columns ? columns - k : chunk_columns);
        for (int begin = 0; begin < n; begin += scaled) {
            const int end = n - begin < scaled ? n : begin + scaled;
            const uint32_t bits = Vectors::largest_bits(x + begin, end - begin);
            float largest;
            __builtin_memcpy(&largest, &bits, sizeof largest);
            const bool finite = bits < 0x7f800000;
            const bool nonzero = finite && largest >= smallest_scaled;
            blocks->d[begin / scaled] = nonzero ? largest / 127.0f : finite ? 0.0f : __builtin_nanf("");
            const float inverse = nonzero ? 127.0f / largest : 0.0f;
            for (int i = begin; i < end; i += 32) {
                const typename Vectors::Bytes q = nonzero ? Vectors::rounded(x + i, inverse) : Vectors::zeros();
                Vectors::store(q, blocks->q + i);
                const SumsOf16 sums = Vectors::sums(q);
                blocks->sums16[i / 16] = static_cast<int16_t>(sums.first);
                blocks->sums16[i / 16 + 1] = static_cast<int16_t>(sums.second);
                blocks->sums32[i / 32] = static_cast<int16_t>(sums.first + sums.second);
                if constexpr (ActivationBlock<scaled>::summed == 16) {
                    blocks->minus_excess[i / 16] = -excess * sums.first;
                    blocks->minus_excess[i / 16 + 1] = -excess * sums.second;
                } else {
                    blocks->minus_excess[i / 32] = -excess * (sums.first + sums.second);
                }
            }
        }
    }
}

// Fills in the table's quantising functions.
template <class Vectors>
void set_quantize(MatrixKernels& kernels) {
    kernels.quantize_per_256 = quantize<Vectors, 256>;
    kernels.quantize_per_32 = quantize<Vectors, 32>;
}

}  // namespace
}  // namespace puna
