#include "matrix/float_product.h"
#include "matrix/kernels_simd.h"
#include "matrix/lanes_neon.h"

namespace puna {

void add_floats_neon(MatrixKernels& kernels) { set_float_products<Neon>(kernels); }

}  // namespace puna
