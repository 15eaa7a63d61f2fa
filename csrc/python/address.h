// What Python hands to the extension: addresses as integers, which 0 makes null.
#pragma once
#include <cstdint>

namespace puna {

template <class T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace puna
