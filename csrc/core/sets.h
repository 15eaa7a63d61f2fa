// Kernels defined by one source for every instruction set.
//
// The build compiles a source *_kernels.cpp once per instruction set (CMakeLists.txt lists them), with PUNA_SET naming
// the set; its definitions are in the namespace of that name.
#pragma once
#include "core/level.h"

// The sets with their own float vectors on this kind of processor, named after their levels.
#if defined(__x86_64__) && defined(PUNA_WITH_AVX512)
#define PUNA_VECTOR_SETS(expand, ...) \
    expand(portable, __VA_ARGS__) expand(avx2, __VA_ARGS__) expand(avx512, __VA_ARGS__)
#elif defined(__x86_64__)
#define PUNA_VECTOR_SETS(expand, ...) expand(portable, __VA_ARGS__) expand(avx2, __VA_ARGS__)
#elif defined(__aarch64__)
#define PUNA_VECTOR_SETS(expand, ...) expand(portable, __VA_ARGS__) expand(neon, __VA_ARGS__)
#else
#define PUNA_VECTOR_SETS(expand, ...) expand(portable, __VA_ARGS__)
#endif

// For a header, in namespace puna: declares `Kernels name` of every set, and the function name(level) that selects one.
#define PUNA_DECLARE_KERNELS(Kernels, name)            \
    PUNA_VECTOR_SETS(PUNA_DECLARE_SET, Kernels, name) \
    const Kernels& name(CpuLevel level = cpu_level())
#define PUNA_DECLARE_SET(set, Kernels, name) \
    namespace set {                          \
    extern const Kernels name;               \
    }

// For a portable source: defines that function.
#define PUNA_DEFINE_CHOICE(Kernels, name)                     \
    const Kernels& name(CpuLevel level) {                     \
        switch (vector_level(level)) {                        \
            PUNA_VECTOR_SETS(PUNA_CASE_OF_SET, Kernels, name) \
            default: return portable::name;                   \
        }                                                     \
    }
#define PUNA_CASE_OF_SET(set, Kernels, name) \
    case CpuLevel::set: return set::name;
