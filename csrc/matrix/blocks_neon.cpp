#include "matrix/kernels_simd.h"
#include "matrix/lanes_neon.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_blocks_neon(MatrixKernels& kernels) {
    set_products<Neon, Scaling::per_32>(kernels);
}

}  // namespace puna
