#include "sample/sample_kernel.h"

namespace puna {
const SampleKernels sample_avx2 = sample_kernels_here;
}
