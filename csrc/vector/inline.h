// Functions that are always inlined, so that no copy is left for the linker to share between instruction sets.
#pragma once

#define PUNA_INLINE __attribute__((always_inline)) inline
