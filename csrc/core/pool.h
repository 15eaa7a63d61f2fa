// The thread pool that all kernels share.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace puna {

// Threads that a parallel loop may use, including the calling one.
int thread_count();

// Sets the number of threads (at least 1). Waits for a running loop to end. Default: usable_cores().
void set_thread_count(int threads);

namespace detail {
using Task = void (*)(void* context, int64_t index, int thread);
void run(int64_t count, Task task, void* context);

// Neighbouring indices of a loop. The thread they were assigned to takes them from the front, others from the back.
class alignas(64) Run {
public:
    void assign(int64_t begin, int64_t end) { left_.store(begin << 32 | end, std::memory_order_relaxed); }

    // Both return the index that was taken, or -1 if none is left.
    int64_t take_first() {
        const int64_t left = take(int64_t{1} << 32);
        return left < 0 ? -1 : left >> 32;
    }
    int64_t take_last() {
        const int64_t left = take(-1);
        return left < 0 ? -1 : (left & 0xffffffff) - 1;
    }

private:
    // Returns what was left before, or -1 for nothing.
    int64_t take(int64_t change) {
        int64_t left = left_.load(std::memory_order_relaxed);
        while (left >> 32 < (left & 0xffffffff)) {
            if (left_.compare_exchange_weak(left, left + change, std::memory_order_relaxed)) return left;
        }
        return -1;
    }

    std::atomic<int64_t> left_{0};   // the first index and, in the lower half, the end
};
}  // namespace detail

// Calls body(index, thread) once for every index in [0, count), on several threads, and returns when all are done.
// Indices are handed out one at a time, in order, to whichever thread is free, so that a core lost to another process
// only slows its share: make a call worth 5 us or more. `thread`, in [0, thread_count()), is for choosing scratch
// memory; results must not depend on it. `body` must not throw.
//
// A loop inside a loop runs on the calling thread, with the outer loop's `thread`. Loops started by different threads
// take turns. After fork() the child starts a pool of its own when it first needs one.
template <class Body>
void parallel_for(int64_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    detail::run(
        count,
        [](void* context, int64_t index, int thread) { (*static_cast<Plain*>(context))(index, thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// The same with ranges: body(begin, end, thread) for ranges of at most `grain` indices.
template <class Body>
void parallel_ranges(int64_t count, int64_t grain, Body&& body) {
    if (count <= 0) return;
    if (grain < 1) grain = 1;
    parallel_for((count + grain - 1) / grain, [&](int64_t index, int thread) {
        const int64_t begin = index * grain;
        body(begin, begin + grain < count ? begin + grain : count, thread);
    });
}

// The same for fewer than 2^31 indices, but each thread takes neighbours one after another, so that a body that reads
// on where the one before stopped uses what that prefetched. A thread without work takes the last indices of another.
template <class Body>
void parallel_runs(int64_t count, Body&& body) {
    const int64_t runs = thread_count();
    if (runs == 1 || count < 2) return parallel_for(count, body);
    std::vector<detail::Run> all(static_cast<size_t>(runs));
    for (int64_t i = 0; i < runs; i++) all[static_cast<size_t>(i)].assign(count * i / runs, count * (i + 1) / runs);
    parallel_for(runs, [&](int64_t own, int thread) {
        for (int64_t i = 0; i < runs; i++) {
            detail::Run& run = all[static_cast<size_t>((own + i) % runs)];
            for (int64_t index; (index = i == 0 ? run.take_first() : run.take_last()) >= 0;) body(index, thread);
        }
    });
}

}  // namespace puna
