// The tables of instruction sets are filled file by file.
#pragma once
#include "matrix/kernels.h"

namespace puna {

void add_quantize_avx2(MatrixKernels& kernels);   // activations

void add_super_blocks_avx2(MatrixKernels& kernels);
void add_blocks_avx2(MatrixKernels& kernels);
void add_floats_avx2(MatrixKernels& kernels);

void add_super_blocks_avxvnni(MatrixKernels& kernels);
void add_blocks_avxvnni(MatrixKernels& kernels);

void add_super_blocks_avx512(MatrixKernels& kernels);
void add_blocks_avx512(MatrixKernels& kernels);
void add_floats_avx512(MatrixKernels& kernels);

void add_super_blocks_amx(MatrixKernels& kernels);
void add_blocks_amx(MatrixKernels& kernels);
void add_floats_amx(MatrixKernels& kernels);

void add_quantize_neon(MatrixKernels& kernels);   // activations

void add_super_blocks_neon(MatrixKernels& kernels);
void add_blocks_neon(MatrixKernels& kernels);
void add_floats_neon(MatrixKernels& kernels);

void add_super_blocks_dotprod(MatrixKernels& kernels);
void add_blocks_dotprod(MatrixKernels& kernels);

}  // namespace puna
