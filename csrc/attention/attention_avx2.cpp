#include "attention/attention_kernel.h"

namespace puna {
const AttentionKernels attention_avx2 = attention_kernels;
}
