#include "core/pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cpu.h"
#include "core/nodes.h"

namespace puna {
namespace {

// How long an idle worker looks for work before it sleeps: longer than the gap between two kernels of a decode step,
// short enough that an idle process uses no CPU. 2 ms would bridge the gap between steps: single streams were 1.02 to
// 1.03 times as fast, but a server with 16 clients on two cores only 0.93, since its own process needs the core.
constexpr auto spin_time = std::chrono::microseconds(60);

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

// The thread's number inside a running loop, or -1 outside.
thread_local int current_thread = -1;

struct Loop {
    detail::Task task = nullptr;
    void* context = nullptr;
    int64_t count = 0;
    std::atomic<int64_t> next{0};

    void work(int thread) {
        current_thread = thread;
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(context, i, thread);
        current_thread = -1;
    }
};

// Workers join a loop while it is `open` and are counted in `active` while they are in it. The caller takes indices
// like the workers, closes the loop, and waits for the active workers only, not for those that were asleep or had no
// core. `active` is raised before `open` is read and `open` is lowered before `active` is read (all sequentially
// consistent), so no worker can be inside after the caller has seen zero.
class Pool {
public:
    explicit Pool(int threads) : threads_(threads) {}

    int threads() const { return threads_.load(std::memory_order_relaxed); }

    void resize(int threads) {
        std::lock_guard<std::mutex> turn(turn_);
        stop_workers();
        threads_.store(threads < 1 ? 1 : threads, std::memory_order_relaxed);
    }

    void run(int64_t count, detail::Task task, void* context) {
        std::lock_guard<std::mutex> turn(turn_);
        const int threads = this->threads();
        if (workers_.empty() && threads > 1) start_workers(threads - 1);
        loop_.task = task;
        loop_.context = context;
        loop_.count = count;
        loop_.next.store(0, std::memory_order_relaxed);
        open_.store(true);
        generation_.fetch_add(1);
        if (sleeping_.load() > 0) {
            { std::lock_guard<std::mutex> lock(sleep_); }
            wake_.notify_all();
        }
        loop_.work(0);
        open_.store(false);
        for (int spins = 0; active_.load() != 0; spins++) {
            if (spins < 2000) pause_cpu();
            else sched_yield();   // the awaited worker may need this very core
        }
    }

    std::mutex& turn() { return turn_; }

private:
    void start_workers(int count) {
        stop_ = false;
        try {
            for (int i = 1; i <= count; i++) workers_.emplace_back([this, i] { serve(i); });
        } catch (const std::system_error&) {
            // The system refuses more threads: use those that exist.
        }
    }

    void stop_workers() {
        {
            std::lock_guard<std::mutex> lock(sleep_);
            stop_ = true;
            generation_.fetch_add(1);
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
        workers_.clear();
    }

    void serve(int thread) {
        stay_on_node(thread);
        uint64_t seen = 0;
        while (true) {
            seen = wait_beyond(seen);
            if (stop_) return;
            active_.fetch_add(1);
            if (open_.load()) loop_.work(thread);
            active_.fetch_sub(1);
        }
    }

    // Returns the generation once it differs from `seen`.
    uint64_t wait_beyond(uint64_t seen) {
        const auto until = std::chrono::steady_clock::now() + spin_time;
        do {
            for (int i = 0; i < 64; i++) {
                const uint64_t now = generation_.load(std::memory_order_acquire);
                if (now != seen) return now;
                pause_cpu();
            }
        } while (std::chrono::steady_clock::now() < until);
        std::unique_lock<std::mutex> lock(sleep_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
        sleeping_.fetch_sub(1);
        return generation_.load();
    }

    std::mutex turn_;                     // held by the thread whose loop runs
    std::atomic<int> threads_;
    std::vector<std::thread> workers_;    // started by the first loop
    Loop loop_;
    alignas(64) std::atomic<uint64_t> generation_{0};
    alignas(64) std::atomic<int> active_{0};
    std::atomic<bool> open_{false};
    std::atomic<int> sleeping_{0};
    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<bool> stop_{false};
};

// Never destroyed: joining threads at interpreter exit gains nothing and can hang.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
    static const bool made = [] {
        the_pool.store(new Pool(usable_cores()));
        pthread_atfork([] { the_pool.load()->turn().lock(); },
                       [] { the_pool.load()->turn().unlock(); },
                       // Threads do not survive fork: the child gets a new pool, and the old one is abandoned.
                       [] { the_pool.store(new Pool(the_pool.load()->threads())); });
        return true;
    }();
    (void)made;
    return *the_pool.load(std::memory_order_acquire);
}

}  // namespace

int thread_count() { return pool().threads(); }

void set_thread_count(int threads) { pool().resize(threads); }

void detail::run(int64_t count, Task task, void* context) {
    if (count <= 0) return;
    if (current_thread >= 0) {   // already inside a loop
        for (int64_t i = 0; i < count; i++) task(context, i, current_thread);
    } else if (count == 1 || thread_count() == 1) {
        current_thread = 0;
        for (int64_t i = 0; i < count; i++) task(context, i, 0);
        current_thread = -1;
    } else {
        pool().run(count, task, context);
    }
}

}  // namespace puna
