#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx2.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_super_blocks_avxvnni(MatrixKernels& kernels) {
    set_products<AvxVnni, Scaling::per_256>(kernels);
}

}  // namespace puna
