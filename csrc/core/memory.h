// Memory for weights and for intermediate results of kernels.
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

// Uninitialised bytes, aligned to 64. Throws std::bad_alloc if memory is short.
inline Allocation allocate_memory(size_t bytes) {
    // Whole huge pages if the system provides them: with pages of 4 KiB, streaming weights is a tenth slower, and rows
    // of activations lie kilobytes apart.
    constexpr size_t huge = size_t{2} << 20;
    void* memory = nullptr;
    if (posix_memalign(&memory, bytes < huge ? 64 : huge, bytes ? bytes : 64) != 0) throw std::bad_alloc();
#if defined(__linux__)
    if (bytes >= huge) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return Allocation(static_cast<uint8_t*>(memory));
}

// Uninitialised bytes, aligned to 64, in a block of huge pages: small matrices would not fill one, and the ends of larger
// ones would lie in small pages. The block is freed with the last of its parts. (The standard library's shared pointers
// need a newer system than wheels do.)
class SharedBytes {
public:
    SharedBytes() = default;
    ~SharedBytes();
    SharedBytes(const SharedBytes&) = delete;
    SharedBytes& operator=(const SharedBytes&) = delete;

    // To be called once. Throws std::bad_alloc if memory is short.
    void allocate(size_t bytes);

    uint8_t* get() const { return begin_; }

private:
    struct Block;

    static Block* newest_;   // or null, if its parts are freed
    Block* block_ = nullptr;
    uint8_t* begin_ = nullptr;
};

}  // namespace puna
