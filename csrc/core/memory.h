// Memory for weights and for what kernels compute on the way.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace puna {

struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
};

using Allocation = std::unique_ptr<uint8_t, Free>;

// Bytes on a boundary of 64, without values. Throws std::bad_alloc if memory is short.
inline Allocation allocate_memory(size_t bytes) {
    // Whole huge pages where the system gives them: streaming weights through pages of 4 KiB costs a tenth of the
    // speed, and rows of activations lie kilobytes apart.
    constexpr size_t huge = size_t{2} << 20;
    void* memory = nullptr;
    if (posix_memalign(&memory, bytes < huge ? 64 : huge, bytes ? bytes : 64) != 0) throw std::bad_alloc();
#if defined(__linux__)
    if (bytes >= huge) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return Allocation(static_cast<uint8_t*>(memory));
}

}  // namespace puna
