// Memory for the intermediate results of a kernel call.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/memory.h"

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

    // Allocates the memory once everything is reserved. Throws std::bad_alloc if memory is short.
    void allocate() {
        thread_local Kept kept;
        kept.grow(size_);
        data_ = kept.memory.get();
    }

    template <class T>
    T* at(size_t begin) const {
        return reinterpret_cast<T*>(data_ + begin);
    }

private:
    struct Kept {
        Allocation memory;
        size_t size = 0;

        void grow(size_t wanted) {
            if (wanted <= size) return;
            memory.reset();   // first, so that both are never allocated at once
            size = 0;
            memory = allocate_memory(wanted);
            size = wanted;
        }
    };

    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace puna
