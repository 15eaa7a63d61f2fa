// Products of weights that are converted to 8-bit numbers first.
#include "matrix/expanded_product.h"
#include "matrix/lanes.h"
#include "matrix/sets.h"

namespace puna {

void PUNA_SET::add_expanded(MatrixKernels& kernels) {
    set_points<SetLanes>(kernels);
    set_expanded_numbers<SetLanes>(kernels);
}

}  // namespace puna
