#include "attention/attention_kernel.h"

namespace puna {
const AttentionKernels attention_neon = attention_kernels;
}
