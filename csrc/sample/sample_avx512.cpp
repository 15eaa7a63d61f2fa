#include "sample/sample_kernel.h"

namespace puna {
const SampleKernels sample_avx512 = sample_kernels_here;
}
