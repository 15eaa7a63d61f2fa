// F32, F16 and BF16 with AVX2: one fused multiply-add per column, 8 rows and token.
//
// Every (row, token) is one chain of additions in the order of the columns, restarted each 256: the same in
// every tile. A tile has 8 chains or so in flight, which is what hides the latency of an addition.
#include "matrix/kernels_avx2.h"
#include "matrix/tile_avx2.h"

namespace puna {
namespace {

struct F32 {
    static constexpr int bytes = 4;
    static PUNA_INLINE __m256 load(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};
struct F16 {
    static constexpr int bytes = 2;
    static PUNA_INLINE __m256 load(const uint8_t* p) { return halves(p); }
};
struct BF16 {
    static constexpr int bytes = 2;
    static PUNA_INLINE __m256 load(const uint8_t* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
    }
};

template <class N, int T, int G>
PUNA_INLINE void some_groups(const uint8_t* weights, int64_t stride, int64_t columns, const void* const* x,
                             float* const* y, int64_t group) {
    __m256 totals[G][T];
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < T; t++) totals[g][t] = _mm256_setzero_ps();
    }
    for (int64_t begin = 0; begin < columns; begin += chunk_columns) {
        const int64_t end = columns - begin < chunk_columns ? columns : begin + chunk_columns;
        __m256 sums[G][T];
        for (int g = 0; g < G; g++) {
            for (int t = 0; t < T; t++) sums[g][t] = _mm256_setzero_ps();
        }
        for (int64_t k = begin; k < end; k++) {
            __m256 w[G];
            for (int g = 0; g < G; g++) {
                const uint8_t* p = weights + g * stride + k * R * N::bytes;
                w[g] = N::load(p);
                prefetch(p + ahead);
            }
            for (int t = 0; t < T; t++) {
                const __m256 value = _mm256_broadcast_ss(static_cast<const float*>(x[t]) + k);
                for (int g = 0; g < G; g++) sums[g][t] = _mm256_fmadd_ps(w[g], value, sums[g][t]);
            }
        }
        for (int g = 0; g < G; g++) {
            for (int t = 0; t < T; t++) totals[g][t] = _mm256_add_ps(totals[g][t], sums[g][t]);
        }
    }
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < T; t++) _mm256_storeu_ps(y[t] + (group + g) * R, totals[g][t]);
    }
}

template <class N, int T>
void product(const uint8_t* weights, int64_t stride, int64_t groups, int64_t columns, const void* const* x,
             float* const* y) {
    constexpr int G = T == 1 ? 4 : 2;
    int64_t group = 0;
    for (; group + G <= groups; group += G) {
        some_groups<N, T, G>(weights + group * stride, stride, columns, x, y, group);
    }
    for (; group < groups; group++) some_groups<N, T, 1>(weights + group * stride, stride, columns, x, y, group);
}

template <class N>
void set(MatrixKernels& kernels, Layout layout) {
    const int l = static_cast<int>(layout);
    kernels.tile[l] = 4;
    kernels.product[l][0] = product<N, 1>;
    kernels.product[l][1] = product<N, 2>;
    kernels.product[l][2] = product<N, 3>;
    kernels.product[l][3] = product<N, 4>;
}

}  // namespace

void add_floats_avx2(MatrixKernels& kernels) {
    set<F32>(kernels, Layout::f32);
    set<F16>(kernels, Layout::f16);
    set<BF16>(kernels, Layout::bf16);
}

}  // namespace puna
