// The tables of the AVX2 and AVX-512 kernels, put together in portable code.
#include "matrix/kernels.h"

#if defined(__x86_64__)
#include "matrix/kernels_avx2.h"
#include "matrix/kernels_avx512.h"

namespace puna {

const MatrixKernels& avx2_matrix_kernels() {
    static const MatrixKernels kernels = [] {
        MatrixKernels table{};
        table.rows = 8;
        add_quantize_avx2(table);
        add_super_blocks_avx2(table);
        add_blocks_avx2(table);
        add_floats_avx2(table);
        return table;
    }();
    return kernels;
}

const MatrixKernels& avx512_matrix_kernels() {
    static const MatrixKernels kernels = [] {
        MatrixKernels table{};
        table.rows = 16;
        add_quantize_avx2(table);
        add_super_blocks_avx512(table);
        add_blocks_avx512(table);
        return table;
    }();
    return kernels;
}

}  // namespace puna
#endif
