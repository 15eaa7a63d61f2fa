// The thread pool that all kernels share.
#pragma once
#include <cstdint>
#include <type_traits>

namespace puna {

// Threads that a parallel loop may use, including the calling one.
int thread_count();

// Sets the number of threads (at least 1). Waits for a running loop to end. Default: usable_cores().
void set_thread_count(int threads);

namespace detail {
using Task = void (*)(void* context, int64_t index, int thread);
void run(int64_t count, Task task, void* context);
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

}  // namespace puna
