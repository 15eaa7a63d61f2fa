#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx512.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_super_blocks_avx512(MatrixKernels& kernels) {
    set_products<Avx512, Scaling::per_256>(kernels);
}

}  // namespace puna
