#include "matrix/kernels_simd.h"
#include "matrix/lanes_neon.h"
#include "matrix/quantized_product.h"

namespace puna {

void add_blocks_dotprod(MatrixKernels& kernels) {
    set_products<Dotprod, Layout::q8_0, Layout::q4_0, Layout::q4_1, Layout::q5_0, Layout::q5_1, Layout::iq4_nl,
                 Layout::mxfp4>(kernels);
}

}  // namespace puna
