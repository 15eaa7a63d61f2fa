#include "rows/rows_kernel.h"

namespace puna {
const RowKernels rows_portable = row_kernels_here;
}
