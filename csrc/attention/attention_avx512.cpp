#include "attention/attention_kernel.h"

namespace puna {
const AttentionKernels attention_avx512 = attention_kernels;
}
