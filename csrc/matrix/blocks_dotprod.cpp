#include "matrix/kernels_simd.h"
#include "matrix/lanes_neon.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_blocks_dotprod(MatrixKernels& kernels) {
    set_products<Dotprod, Scaling::per_32>(kernels);
}

}  // namespace puna
