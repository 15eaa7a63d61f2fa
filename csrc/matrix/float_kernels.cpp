// Products of weights that are floats.
#include "matrix/float_product.h"
#include "matrix/lanes.h"
#include "matrix/sets.h"
#include "matrix/word_product.h"

namespace puna {

void PUNA_SET::add_floats(MatrixKernels& kernels) {
    set_float_products<SetLanes>(kernels);
#if defined(__AVX2__) && !defined(__AVX512F__)
    set_word_products<SetLanes>(kernels);
#endif
}

}  // namespace puna
