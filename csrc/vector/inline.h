// Functions that are always inlined, so that no copy is left for the linker to share between instruction sets.
#pragma once

#define PUNA_INLINE __attribute__((always_inline)) inline

namespace puna {
namespace {

// Makes the compiler keep a sum in its register: GCC 12 would move some to others and back in each step. Clang keeps them
// by itself, and its code would become slower.
template <class Vector>
PUNA_INLINE void keep([[maybe_unused]] Vector& sum) {
#if defined(__AVX512F__) && !defined(__clang__)
    __asm__("" : "+v"(sum));
#elif defined(__AVX2__) && !defined(__clang__)
    __asm__("" : "+x"(sum));
#endif
}

}  // namespace
}  // namespace puna
