// The tables of x86 instruction sets, put together in portable code.
#include "core/cpu.h"
#include "matrix/kernels_simd.h"

#if defined(__x86_64__)

namespace puna {
namespace {

MatrixKernels table(int rows, void (*add)(MatrixKernels&)) {
    MatrixKernels kernels{};
    kernels.rows = rows;
    kernels.ahead = made_by_amd() ? ahead_of_hardware : ahead_with_hardware;
    add_quantize_avx2(kernels);
    add(kernels);
    return kernels;
}

}  // namespace

const MatrixKernels& avx2_matrix_kernels() {
    static const MatrixKernels kernels = table(8, [](MatrixKernels& to) {
        add_super_blocks_avx2(to);
        add_blocks_avx2(to);
        add_floats_avx2(to);
    });
    return kernels;
}

const MatrixKernels& avx_vnni_matrix_kernels() {
    static const MatrixKernels kernels = table(8, [](MatrixKernels& to) {
        add_super_blocks_avxvnni(to);
        add_blocks_avxvnni(to);
        add_floats_avx2(to);
    });
    return kernels;
}

const MatrixKernels& avx512_matrix_kernels() {
    static const MatrixKernels kernels = table(16, [](MatrixKernels& to) {
        add_super_blocks_avx512(to);
        add_blocks_avx512(to);
        add_floats_avx512(to);
    });
    return kernels;
}

const MatrixKernels& amx_matrix_kernels() {
    static const MatrixKernels kernels = [] {
        MatrixKernels to = avx512_matrix_kernels();
        add_super_blocks_amx(to);
        add_blocks_amx(to);
        add_floats_amx(to);
        return to;
    }();
    return kernels;
}

}  // namespace puna
#endif
