// Products of weights in super-blocks of 256.
#include "matrix/lanes.h"
#include "matrix/quantized_product.h"
#include "matrix/sets.h"

namespace puna {

void PUNA_SET::add_super_blocks(MatrixKernels& kernels) { set_products<SetLanes, Scaling::per_256>(kernels); }

}  // namespace puna
