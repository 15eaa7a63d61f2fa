#include "sample/sample_kernel.h"

namespace puna {
const SampleKernels sample_neon = sample_kernels_here;
}
