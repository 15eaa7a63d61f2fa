// Functions that are always inlined: no copy is left that the linker could share between instruction sets.
#pragma once

#define PUNA_INLINE __attribute__((always_inline)) inline
