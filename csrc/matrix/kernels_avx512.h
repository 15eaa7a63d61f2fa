// The AVX-512 VNNI table is filled file by file. It has no float kernels: those read more than they compute.
#pragma once
#include "matrix/kernels.h"

namespace puna {

void add_super_blocks_avx512(MatrixKernels& kernels);   // Q4_K, Q5_K, Q6_K
void add_blocks_avx512(MatrixKernels& kernels);         // Q8_0, Q4_0, scaled

}  // namespace puna
