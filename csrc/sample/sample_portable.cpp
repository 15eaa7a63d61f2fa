#include "sample/sample_kernel.h"

namespace puna {
const SampleKernels sample_portable = sample_kernels_here;
}
