// Exercises the thread pool for ThreadSanitizer. The loops write plain memory that the caller reads afterwards:
// whatever the pool fails to order is a race the sanitizer reports. Exits with 1 when a result is wrong.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "core/pool.h"

namespace {

std::atomic<int> failures{0};

void check(bool good, const char* what) {
    if (!good && failures.fetch_add(1) < 20) std::fprintf(stderr, "wrong: %s\n", what);
}

// Each index runs once, on a thread whose number is in range, and the caller sees every write.
void loop_once(int count, bool runs) {
    std::vector<int> visits(static_cast<size_t>(count), 0);
    std::vector<int> by(static_cast<size_t>(count), -1);
    const auto visit = [&](int64_t i, int thread) {
        visits[static_cast<size_t>(i)]++;
        by[static_cast<size_t>(i)] = thread;
    };
    if (runs) puna::parallel_runs(count, visit);
    else puna::parallel_for(count, visit);
    for (int i = 0; i < count; i++) {
        check(visits[static_cast<size_t>(i)] == 1, "an index was not visited exactly once");
        check(by[static_cast<size_t>(i)] >= 0 && by[static_cast<size_t>(i)] < 16, "a thread number is out of range");
    }
}

// Each loop reads what the previous one wrote, like the kernels of a forward pass.
void chain(int steps) {
    std::vector<int> values(64, 0);
    for (int step = 0; step < steps; step++) {
        puna::parallel_ranges(64, 7, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; i++) values[static_cast<size_t>(i)]++;
        });
    }
    for (const int value : values) check(value == steps, "a loop did not see what the one before wrote");
}

// Scratch memory is chosen by thread number, without locks.
void scratch() {
    std::vector<long> sums(16, 0);
    puna::parallel_for(1000, [&](int64_t i, int thread) { sums[static_cast<size_t>(thread)] += static_cast<long>(i); });
    long total = 0;
    for (const long sum : sums) total += sum;
    check(total == 999 * 1000 / 2, "two threads shared a thread number");
}

void nested() {
    std::vector<int> cells(20 * 20, 0);
    puna::parallel_for(20, [&](int64_t row, int outer) {
        puna::parallel_for(20, [&](int64_t column, int inner) {
            check(inner == outer, "a loop in a loop changed threads");
            cells[static_cast<size_t>(row * 20 + column)]++;
        });
    });
    for (const int cell : cells) check(cell == 1, "a loop in a loop lost an index");
}

// A thread that loses its core delays only its current piece; the others do all the rest meanwhile.
void stalled(bool runs) {
    constexpr int count = 200;
    std::atomic<int> done{0};
    bool rest_was_done = false;
    const auto piece = [&](int64_t i, int) {
        if (i == 0) {
            for (int waited_ms = 0; done.load() < count - 1 && waited_ms < 20000; waited_ms++) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            rest_was_done = done.load() == count - 1;
        } else {
            done.fetch_add(1);
        }
    };
    if (runs) puna::parallel_runs(count, piece);
    else puna::parallel_for(count, piece);
    check(rest_was_done, "the other threads left work to one that had stalled");
}

}  // namespace

int main() {
    puna::set_thread_count(4);
    for (const int count : {0, 1, 2, 3, 64, 1000}) {
        for (const bool runs : {false, true}) loop_once(count, runs);
    }
    chain(2000);
    scratch();
    nested();
    for (const bool runs : {false, true}) stalled(runs);
    for (int i = 0; i < 30; i++) {   // the workers have gone to sleep each time
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        chain(2);
    }
    // Several callers run while another thread changes the number of threads.
    std::atomic<bool> stop{false};
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; i++) {
        callers.emplace_back([&] {
            while (!stop.load()) {
                chain(20);
                scratch();
                nested();
            }
        });
    }
    for (int i = 0; i < 40; i++) {
        puna::set_thread_count(1 + i % 5);
        loop_once(100, i % 2 == 0);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    stop.store(true);
    for (std::thread& caller : callers) caller.join();
    puna::set_thread_count(1);   // end the workers, or they would be reported as leaked
    if (failures.load() == 0) std::puts("pool: all right");
    return failures.load() ? 1 : 0;
}
