// The instruction sets that kernels are written for, and what else they ask about the processor.
#pragma once

namespace puna {

// Levels: `avx2` means AVX2, FMA and F16C; `avx_vnni` adds the 8-bit dot product to `avx2`; `avx512` means F, BW, DQ,
// VL and VNNI; `amx` adds tiles of 8-bit products to `avx512`. Every 64-bit ARM processor has `neon`; most since 2018
// have `dotprod`, NEON with the 8-bit dot product.
enum class CpuLevel { portable, avx2, avx_vnni, avx512, amx, neon, dotprod };

// The level in use: the best of this processor, or another it can run, selected by PUNA_CPU or `set_cpu_level`.
CpuLevel cpu_level();

// The level whose float vectors `level` uses: `avx_vnni`, `amx` and `dotprod` add none.
CpuLevel vector_level(CpuLevel level);

// Whether the processor is AMD's, which needs other prefetches.
bool made_by_amd();

}  // namespace puna
