// Activations to 8-bit integers with NEON.
#include "matrix/kernels_simd.h"
#include "matrix/lanes_neon.h"

namespace puna {
namespace {

// The largest magnitude of n values (a multiple of 32) as bits: NaN > infinity > numbers, compared as integers.
PUNA_INLINE uint32_t largest_bits(const float* x, int n) {
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
    uint32x4_t most[4];
    for (int j = 0; j < 4; j++) most[j] = vdupq_n_u32(0);
    for (int i = 0; i < n; i += 16) {
        for (int j = 0; j < 4; j++) {
            const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + i + 4 * j));
            most[j] = vmaxq_u32(most[j], vandq_u32(bits, magnitude));
        }
    }
    return vmaxvq_u32(vmaxq_u32(vmaxq_u32(most[0], most[1]), vmaxq_u32(most[2], most[3])));
}

// 16 values divided by their scale, as bytes in order.
PUNA_INLINE int8x16_t round16(const float* x, float inverse) {
    int16x4_t v[4];
    for (int j = 0; j < 4; j++) v[j] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * j), inverse)));
    return vcombine_s8(vqmovn_s16(vcombine_s16(v[0], v[1])), vqmovn_s16(vcombine_s16(v[2], v[3])));
}

template <int Scale>
void quantize(const float* x, int64_t columns, ActivationBlock* blocks) {
    for (int64_t k = 0; k < columns; k += chunk_columns, blocks++) {
        const int n = static_cast<int>(columns - k < chunk_columns ? columns - k : chunk_columns);
        for (int i = 0; i < n; i += Scale) {
            const int count = n - i < Scale ? n - i : Scale;
            const uint32_t bits = largest_bits(x + k + i, count);
            float largest;
            __builtin_memcpy(&largest, &bits, 4);
            const bool finite = bits < 0x7f800000;
            const bool scaled = finite && largest >= smallest_scaled;
            blocks->d[i / Scale] = scaled ? largest / 127.0f : finite ? 0.0f : __builtin_nanf("");
            const float inverse = scaled ? 127.0f / largest : 0.0f;
            for (int j = i; j < i + count; j += 32) {
                int sums[2];
                for (int h = 0; h < 2; h++) {
                    const int8x16_t q = scaled ? round16(x + k + j + 16 * h, inverse) : vdupq_n_s8(0);
                    vst1q_s8(blocks->q + j + 16 * h, q);
                    sums[h] = vaddlvq_s8(q);
                    blocks->sums16[j / 16 + h] = static_cast<int16_t>(sums[h]);
                }
                blocks->wide32[j / 32] = sums[0] + sums[1];
                blocks->sums32[j / 32] = static_cast<int16_t>(sums[0] + sums[1]);
            }
        }
    }
}

}  // namespace

void add_quantize_neon(MatrixKernels& kernels) {
    kernels.quantize_per_256 = quantize<256>;
    kernels.quantize_per_32 = quantize<32>;
}

}  // namespace puna
