// The table of the AVX2 kernels, put together in portable code.
#include "matrix/kernels.h"

#if defined(__x86_64__)
#include "matrix/kernels_avx2.h"

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

}  // namespace puna
#endif
