#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx512.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_super_blocks_avx512(MatrixKernels& kernels) {
    set_products<Avx512, Layout::q4_k, Layout::q5_k, Layout::q6_k, Layout::q2_k, Layout::q3_k, Layout::iq4_xs>(kernels);
}

}  // namespace puna
