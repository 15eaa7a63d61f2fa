#include "core/memory.h"

#include <algorithm>
#include <mutex>

#include "core/nodes.h"

namespace puna {

namespace {

// Only what is used of a block takes memory.
constexpr size_t block_bytes = size_t{64} << 20;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t most_in_a_block = 0;   // so that it sees who reads beyond an end
#else
constexpr size_t most_in_a_block = block_bytes / 4;
#endif

std::mutex mutex;

}  // namespace

struct SharedBytes::Block {
    Allocation memory;
    size_t size, used = 0, parts = 0;

    explicit Block(size_t bytes) : memory(allocate_memory(bytes)), size(bytes) { interleave(memory.get(), bytes); }
};

SharedBytes::Block* SharedBytes::newest_ = nullptr;

void SharedBytes::allocate(size_t bytes) {
    const size_t rounded = (std::max(bytes, size_t{1}) + 63) / 64 * 64;
    const std::lock_guard lock(mutex);
    if (rounded > most_in_a_block) {
        block_ = new Block(rounded);
    } else {
        if (newest_ == nullptr || newest_->used + rounded > newest_->size) newest_ = new Block(block_bytes);
        block_ = newest_;
    }
    begin_ = block_->memory.get() + block_->used;
    block_->used += rounded;
    block_->parts++;
}

SharedBytes::~SharedBytes() {
    if (block_ == nullptr) return;
    const std::lock_guard lock(mutex);
    if (--block_->parts != 0) return;
    if (newest_ == block_) newest_ = nullptr;
    delete block_;
}

}  // namespace puna
