// Functions that are part of their callers, whatever the compiler thinks of it: none is left over that the linker could
// share between instruction sets.
#pragma once

#define PUNA_INLINE __attribute__((always_inline)) inline
