#include "matrix/kernels_simd.h"
#include "matrix/lanes_neon.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_super_blocks_neon(MatrixKernels& kernels) {
    set_products<Neon, Layout::q4_k, Layout::q5_k, Layout::q6_k, Layout::q2_k, Layout::q3_k, Layout::iq4_xs>(
        kernels);
}

}  // namespace puna
