#include "matrix/lanes_neon.h"
#include "matrix/quantize.h"
#include "matrix/sets.h"

namespace puna {
namespace {

struct Vectors {
    using Bytes = Both<int8x16_t>;

    static PUNA_INLINE uint32_t largest_bits(const float* x, int n) {
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

    static PUNA_INLINE void largest_of_32s(const float* x, uint32_t* bits) {
        for (int i = 0; i < 8; i++) bits[i] = largest_bits(x + 32 * i, 32);
    }

    static PUNA_INLINE int8x16_t rounded16(const float* x, float factor) {
        int16x4_t v[4];
        for (int j = 0; j < 4; j++) v[j] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * j), factor)));
        return vcombine_s8(vqmovn_s16(vcombine_s16(v[0], v[1])), vqmovn_s16(vcombine_s16(v[2], v[3])));
    }
    static PUNA_INLINE Bytes rounded(const float* x, float factor) {
        return {rounded16(x, factor), rounded16(x + 16, factor)};
    }

    static PUNA_INLINE Bytes zeros() { return {vdupq_n_s8(0), vdupq_n_s8(0)}; }

    static PUNA_INLINE void store(Bytes q, int8_t* to) {
        vst1q_s8(to, q.low);
        vst1q_s8(to + 16, q.high);
    }

    static PUNA_INLINE void add_up(const int8_t* q, int32_t* sums) {
        for (int i = 0; i < 16; i++) sums[i] = vaddlvq_s8(vld1q_s8(q + 16 * i));
    }
};

}  // namespace

void neon::add_quantize(MatrixKernels& kernels) { set_quantize<Vectors>(kernels); }

}  // namespace puna
