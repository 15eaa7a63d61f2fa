// Memory for what a kernel call computes on the way.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace puna {

// Pieces of one block of memory, each on a boundary of 64 bytes. The block belongs to the calling thread, grows
// and is kept, because a decode step asks for it hundreds of times: at most one Scratch per thread at a time.
//
//     Scratch scratch;
//     const size_t a = scratch.reserve<float>(n), b = scratch.reserve<int32_t>(m);
//     scratch.allocate();
//     float* values = scratch.at<float>(a);
class Scratch {
public:
    template <class T>
    size_t reserve(int64_t count) {
        const size_t begin = size_;
        size_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
        return begin;
    }

    // Once everything is reserved. Throws std::bad_alloc if memory is short.
    void allocate() {
        thread_local Kept kept;
        kept.grow(size_);
        data_ = kept.data;
    }

    template <class T>
    T* at(size_t begin) const {
        return reinterpret_cast<T*>(data_ + begin);
    }

private:
    struct Kept {
        char* data = nullptr;
        size_t size = 0;

        void grow(size_t wanted) {
            if (wanted <= size) return;
            release();
            // Huge pages where the system gives them: tokens lie kilobytes apart.
            constexpr size_t huge = size_t{2} << 20;
            void* memory = nullptr;
            if (posix_memalign(&memory, wanted < huge ? 64 : huge, wanted) != 0) throw std::bad_alloc();
#if defined(__linux__)
            if (wanted >= huge) madvise(memory, wanted, MADV_HUGEPAGE);
#endif
            data = static_cast<char*>(memory);
            size = wanted;
        }
        void release() {
            std::free(data);
            data = nullptr;
            size = 0;
        }
        ~Kept() { release(); }
    };

    char* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace puna
