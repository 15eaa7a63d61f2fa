// Functions that are always inlined, so that no copy is left for the linker to share between instruction sets.
#pragma once

#define PUNA_INLINE __attribute__((always_inline)) inline

// For loops that hold sums in registers: inlined in a larger function, GCC would leave them in memory.
#define PUNA_NOINLINE __attribute__((noinline))

namespace puna {
namespace {

// Makes the compiler keep a sum in its register, and the order of additions: GCC 12 would move some to others and back
// in each step, and regroup sums of integers, so that all terms wait in memory. Clang keeps them by itself, and its
// code would become slower.
template <class Vector>
PUNA_INLINE void keep([[maybe_unused]] Vector& sum) {
#if defined(__AVX512F__) && !defined(__clang__)
    __asm__("" : "+v"(sum));
#elif defined(__AVX2__) && !defined(__clang__)
    __asm__("" : "+x"(sum));
#endif
}

// Makes the compiler forget a number. GCC 12 would unroll a loop of so few steps, and leave sums in memory.
PUNA_INLINE int unknown(int count) {
#if !defined(__clang__)
    __asm__("" : "+r"(count));
#endif
    return count;
}

}  // namespace
}  // namespace puna
