#include "matrix/float_product.h"
#include "matrix/kernels_simd.h"
#include "matrix/lanes_avx512.h"

namespace puna {

void add_floats_avx512(MatrixKernels& kernels) { set_float_products<Avx512>(kernels); }

}  // namespace puna
