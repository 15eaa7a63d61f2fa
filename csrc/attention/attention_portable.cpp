#include "attention/attention_kernel.h"

namespace puna {
const AttentionKernels attention_portable = attention_kernels;
}
