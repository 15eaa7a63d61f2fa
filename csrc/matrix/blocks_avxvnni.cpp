#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx2.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_blocks_avxvnni(MatrixKernels& kernels) {
    set_products<AvxVnni, Scaling::per_32>(kernels);
}

}  // namespace puna
