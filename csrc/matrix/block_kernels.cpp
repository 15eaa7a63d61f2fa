// Products of weights in blocks of 32.
#include "matrix/lanes.h"
#include "matrix/quantized_product.h"
#include "matrix/sets.h"

namespace puna {

void PUNA_SET::add_blocks(MatrixKernels& kernels) { set_products<SetLanes, Scaling::per_32>(kernels); }

}  // namespace puna
