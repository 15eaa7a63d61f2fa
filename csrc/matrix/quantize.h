// Quantisation of activations to 8-bit integers, for any instruction set: a struct `Vectors` with
//   Bytes                  32 signed bytes
//   largest_bits(x, n)     the largest magnitude of n values (a multiple of 32) as bits: compared as integers,
//                          NaN > infinity > numbers
//   largest_of_32s(x, bits)   the same for each 32 of 256 values
//   rounded(x, factor)     32 values times a factor as the nearest integers, which fit a byte
//   zeros()
//   store(bytes, to)
//   add_up(q, sums)        the sum of each 16 of 256 bytes
#pragma once
#include <cstring>

#include "matrix/kernels.h"
#include "matrix/quads.h"
#include "vector/half.h"

namespace puna {
namespace {

// One token's values, with a scale for each `scaled` of them: 256 or 32.
template <class Vectors, int scaled>
void quantize(const float* x, int64_t columns, ActivationBlock<scaled>* blocks) {
    using Block = ActivationBlock<scaled>;
    constexpr int scales = Block::columns / scaled;
    for (int64_t k = 0; k < columns; k += Block::columns, x += Block::columns, blocks++) {
        const int n = static_cast<int>(columns - k < Block::columns ? columns - k : Block::columns);
        uint32_t largest[scales] = {};
        if (scales > 1 && n == Block::columns) {
            Vectors::largest_of_32s(x, largest);
        } else {
            for (int i = 0; i < n; i += scaled) {
                largest[i / scaled] = Vectors::largest_bits(x + i, n - i < scaled ? n - i : scaled);
            }
        }
        float inverse[scales];
#pragma GCC unroll 1   // unrolled, the loop would not be vectorised
        for (int i = 0; i < scales; i++) {   // without branches
            constexpr uint32_t infinity = 0x7f800000, nan = 0x7fc00000;
            const uint32_t scalable = largest[i] >= float_to_bits(smallest_scaled) && largest[i] < infinity ? ~0u : 0;
            inverse[i] = 127.0f / bits_to_float((largest[i] & scalable) | (infinity & ~scalable));
            const float d = bits_to_float(largest[i] & scalable) / 127.0f;
            blocks->d[i] = bits_to_float(float_to_bits(d) | (largest[i] < infinity ? 0 : nan));
        }
        for (int i = 0; i < n; i += 32) {
            const float factor = inverse[i / scaled];
            Vectors::store(factor > 0 ? Vectors::rounded(x + i, factor) : Vectors::zeros(), blocks->q + i);
        }
        std::memset(blocks->q + n, 0, static_cast<size_t>(Block::columns - n));
        int32_t sums[Block::columns / 16];
        Vectors::add_up(blocks->q, sums);
        for (int i = 0; i < Block::columns / 16; i++) blocks->sums16[i] = static_cast<int16_t>(sums[i]);
        for (int i = 0; i < Block::columns / 32; i++) {
            blocks->sums32[i] = static_cast<int16_t>(sums[2 * i] + sums[2 * i + 1]);
        }
        for (int i = 0; i < Block::columns / Block::summed; i++) {
            const int32_t sum = Block::summed == 16 ? sums[i] : sums[2 * i] + sums[2 * i + 1];
            blocks->minus_excess[i] = -Block::excess * sum;
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
