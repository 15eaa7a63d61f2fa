// Products of float weights.
#include "matrix/float_product.h"
#include "matrix/lanes.h"
#include "matrix/sets.h"
#include "matrix/word_product.h"

namespace puna {

void PUNA_SET::add_floats(MatrixKernels& kernels) {
#if defined(__AVX2__)
    set_float_products<SetLanes, Layout::f32>(kernels);
    set_word_products<SetLanes>(kernels);
#else
    set_float_products<SetLanes, Layout::f32, Layout::f16, Layout::bf16>(kernels);
#endif
}

}  // namespace puna
