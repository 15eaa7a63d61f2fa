#include "rows/rows_kernel.h"

namespace puna {
const RowKernels rows_neon = row_kernels_here;
}
