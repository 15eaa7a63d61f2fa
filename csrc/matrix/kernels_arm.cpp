// The tables of ARM instruction sets, put together in portable code.
#include "matrix/kernels_simd.h"

#if defined(__aarch64__)

namespace puna {
namespace {

MatrixKernels table(void (*add)(MatrixKernels&)) {
    MatrixKernels kernels{};
    kernels.rows = 8;
    kernels.ahead = ahead_with_hardware;
    add_quantize_neon(kernels);
    add_floats_neon(kernels);
    add(kernels);
    return kernels;
}

}  // namespace

const MatrixKernels& neon_matrix_kernels() {
    static const MatrixKernels kernels = table([](MatrixKernels& to) {
        add_super_blocks_neon(to);
        add_blocks_neon(to);
    });
    return kernels;
}

const MatrixKernels& dotprod_matrix_kernels() {
    static const MatrixKernels kernels = table([](MatrixKernels& to) {
        add_super_blocks_dotprod(to);
        add_blocks_dotprod(to);
    });
    return kernels;
}

}  // namespace puna
#endif
