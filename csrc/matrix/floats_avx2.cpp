#include "matrix/float_product.h"
#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx2.h"

namespace puna {

void add_floats_avx2(MatrixKernels& kernels) { set_float_products<Avx2>(kernels); }

}  // namespace puna
