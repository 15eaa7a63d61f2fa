// Products of weights that are floats.
#include "matrix/float_product.h"
#include "matrix/lanes.h"
#include "matrix/sets.h"

namespace puna {

void PUNA_SET::add_floats(MatrixKernels& kernels) { set_float_products<SetLanes>(kernels); }

}  // namespace puna
