// The parts of an instruction set's table, each filled in by a source compiled for the set.
#pragma once
#include "matrix/kernels.h"

namespace puna {

namespace portable {
void add_all(MatrixKernels& kernels);
}

namespace avx2 {
void add_quantize(MatrixKernels& kernels);   // activations
void add_words(MatrixKernels& kernels);      // activations as 16-bit integers
void add_super_blocks(MatrixKernels& kernels);
void add_blocks(MatrixKernels& kernels);
void add_expanded(MatrixKernels& kernels);
void add_floats(MatrixKernels& kernels);
}  // namespace avx2

namespace avx_vnni {
void add_super_blocks(MatrixKernels& kernels);
void add_blocks(MatrixKernels& kernels);
void add_expanded(MatrixKernels& kernels);
}  // namespace avx_vnni

namespace avx512 {
void add_super_blocks(MatrixKernels& kernels);
void add_blocks(MatrixKernels& kernels);
void add_expanded(MatrixKernels& kernels);
void add_floats(MatrixKernels& kernels);
}  // namespace avx512

namespace amx {
void add_super_blocks(MatrixKernels& kernels);
void add_blocks(MatrixKernels& kernels);
void add_floats(MatrixKernels& kernels);
}  // namespace amx

namespace neon {
void add_quantize(MatrixKernels& kernels);   // activations
void add_super_blocks(MatrixKernels& kernels);
void add_blocks(MatrixKernels& kernels);
void add_expanded(MatrixKernels& kernels);
void add_floats(MatrixKernels& kernels);
}  // namespace neon

namespace dotprod {
void add_super_blocks(MatrixKernels& kernels);
void add_blocks(MatrixKernels& kernels);
void add_expanded(MatrixKernels& kernels);
}  // namespace dotprod

}  // namespace puna
