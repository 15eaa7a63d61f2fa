#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx2.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_super_blocks_avx2(MatrixKernels& kernels) {
    set_products<Avx2, Scaling::per_256>(kernels);
}

}  // namespace puna
