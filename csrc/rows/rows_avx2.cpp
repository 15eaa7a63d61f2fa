#include "rows/rows_kernel.h"

namespace puna {
const RowKernels rows_avx2 = row_kernels_here;
}
