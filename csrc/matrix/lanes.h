// The lanes of the instruction set that the including source is compiled for.
#pragma once

#if defined(__AVX512F__)
#include "matrix/lanes_avx512.h"
#elif defined(__AVX2__)
#include "matrix/lanes_avx2.h"
#else
#include "matrix/lanes_neon.h"
#endif

namespace puna {
namespace {

#if defined(__AVX512F__)
using SetLanes = Avx512;
#elif defined(__AVXVNNI__)
using SetLanes = AvxVnni;
#elif defined(__AVX2__)
using SetLanes = Avx2;
#elif defined(__ARM_FEATURE_DOTPROD)
using SetLanes = Dotprod;
#else
using SetLanes = Neon;
#endif

}  // namespace
}  // namespace puna
