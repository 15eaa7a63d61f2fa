#include "core/memory.h"

#include <mutex>
#include <utility>

namespace puna {

namespace {

// Only what is used of a block takes memory.
constexpr size_t block_bytes = size_t{64} << 20;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t most_in_a_block = 0;   // so that it sees who reads beyond an end
#else
constexpr size_t most_in_a_block = block_bytes / 4;
#endif

struct Block {
    std::weak_ptr<uint8_t> memory;
    size_t used = 0;
};

std::mutex mutex;
Block newest;

}  // namespace

SharedAllocation allocate_shared(size_t bytes) {
    if (bytes > most_in_a_block) return allocate_memory(bytes);
    const size_t size = (bytes + 63) / 64 * 64;
    const std::lock_guard lock(mutex);
    SharedAllocation memory = newest.memory.lock();
    if (!memory || newest.used + size > block_bytes) {
        memory = allocate_memory(block_bytes);
        newest = {memory, 0};
    }
    uint8_t* begin = memory.get() + newest.used;
    newest.used += size;
    return SharedAllocation(std::move(memory), begin);
}

}  // namespace puna
