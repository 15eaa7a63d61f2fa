// For kernels with any number of columns: all lanes of a vector, or the first few of the last one.
#pragma once
#include "vector/vector.h"

namespace puna {
namespace {

struct AllLanes {
    PUNA_INLINE Vec load(const float* p) const { return Vec::load(p); }
    PUNA_INLINE void store(Vec v, float* p) const { v.store(p); }
    PUNA_INLINE void store_nontemporal(Vec v, float* p) const { v.store_nontemporal(p); }
};

struct FirstLanes {
    int count;
    PUNA_INLINE Vec load(const float* p) const { return load_part(p, count); }
    PUNA_INLINE void store(Vec v, float* p) const { store_part(v, p, count); }
    PUNA_INLINE void store_nontemporal(Vec v, float* p) const { store(v, p); }
};

// Calls body(i, lanes) for the vectors of `count` numbers; i is the vector's first number.
template <class Body>
PUNA_INLINE void for_vectors(int64_t count, Body body) {
    int64_t i = 0;
    for (; i + Vec::width <= count; i += Vec::width) body(i, AllLanes{});
    if (i < count) body(i, FirstLanes{int(count - i)});
}

}  // namespace
}  // namespace puna
