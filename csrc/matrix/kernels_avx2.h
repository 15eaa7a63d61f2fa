// The AVX2 table is filled file by file.
#pragma once
#include "matrix/kernels.h"

namespace puna {

void add_super_blocks_avx2(MatrixKernels& kernels);   // Q4_K, Q5_K, Q6_K
void add_blocks_avx2(MatrixKernels& kernels);         // Q8_0, Q4_0, scaled
void add_floats_avx2(MatrixKernels& kernels);         // F32, F16, BF16
void add_quantize_avx2(MatrixKernels& kernels);       // activations

}  // namespace puna
