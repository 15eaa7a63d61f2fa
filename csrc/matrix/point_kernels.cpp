// Products of weights that are points of grids.
#include "matrix/lanes.h"
#include "matrix/points_product.h"
#include "matrix/sets.h"

namespace puna {

void PUNA_SET::add_points(MatrixKernels& kernels) { set_points<SetLanes>(kernels); }

}  // namespace puna
