// The tables of all levels, assembled in portable code.
#include <algorithm>
#include <iterator>

#include "core/cpu.h"
#include "matrix/sets.h"

namespace puna {
namespace {

// Returns a table that these functions fill in, one after another.
template <class... Adds>
MatrixKernels table(int rows, Prefetch prefetch, Adds... adds) {
    MatrixKernels kernels{};
    kernels.rows = rows;
    kernels.prefetch = prefetch;
    (adds(kernels), ...);
    return kernels;
}

}  // namespace

const MatrixKernels& matrix_kernels(CpuLevel level) {
#if defined(__x86_64__)
    static const Prefetch prefetch = made_by_amd() ? prefetch_instead_of_hardware : prefetch_with_hardware;
    switch (level) {
        case CpuLevel::avx2: {
            static const MatrixKernels kernels =
                table(8, prefetch, avx2::add_quantize, avx2::add_words, avx2::add_super_blocks, avx2::add_blocks,
                      avx2::add_expanded, avx2::add_floats);
            return kernels;
        }
#if defined(PUNA_WITH_AVX_VNNI)
        case CpuLevel::avx_vnni: {
            static const MatrixKernels kernels =
                table(8, prefetch, avx2::add_quantize, avx2::add_words, avx_vnni::add_super_blocks,
                      avx_vnni::add_blocks, avx_vnni::add_expanded, avx2::add_floats);
            return kernels;
        }
#endif
#if defined(PUNA_WITH_AVX512)
        case CpuLevel::avx512: {
            static const MatrixKernels kernels =
                table(16, prefetch, avx2::add_quantize, avx2::add_words, avx512::add_super_blocks,
                      avx512::add_blocks, avx512::add_expanded, avx512::add_floats);
            return kernels;
        }
#endif
#if defined(PUNA_WITH_AMX)
        case CpuLevel::amx: {
            static const MatrixKernels kernels = [] {
                MatrixKernels to = matrix_kernels(CpuLevel::avx512);
                amx::add_super_blocks(to);
                amx::add_blocks(to);
                amx::add_floats(to);
                return to;
            }();
            return kernels;
        }
#endif
        default: break;
    }
#elif defined(__aarch64__)
    switch (level) {
        case CpuLevel::neon: {
            static const MatrixKernels kernels =
                table(8, prefetch_with_hardware, neon::add_quantize, neon::add_super_blocks, neon::add_blocks,
                      neon::add_expanded, neon::add_floats);
            return kernels;
        }
#if defined(PUNA_WITH_DOTPROD)
        case CpuLevel::dotprod: {
            static const MatrixKernels kernels =
                table(8, prefetch_with_hardware, neon::add_quantize, dotprod::add_super_blocks, dotprod::add_blocks,
                      dotprod::add_expanded, neon::add_floats);
            return kernels;
        }
#endif
        default: break;
    }
#endif
    static const MatrixKernels kernels = table(8, {}, portable::add_all);
    return kernels;
}

bool same_kernels(const MatrixKernels& a, const MatrixKernels& b, Layout layout) {
    const int l = static_cast<int>(layout);
    return a.rows == b.rows && a.tile[l] == b.tile[l] && a.wide[l] == b.wide[l] &&
           std::equal(std::begin(a.product[l]), std::end(a.product[l]), b.product[l]) &&
           a.quantize_per_256 == b.quantize_per_256 && a.quantize_per_32 == b.quantize_per_32;
}

}  // namespace puna
