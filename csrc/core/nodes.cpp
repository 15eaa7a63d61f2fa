#include "core/nodes.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace puna {
namespace {

std::vector<Node> spread;   // written before the pool has threads

#if defined(__linux__)
std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// The numbers of a list like "0-3,8,10-11".
std::vector<int> numbers_in(const std::string& list) {
    std::vector<int> numbers;
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
        std::istringstream range(part);
        int first = 0, last = 0;
        char dash = 0;
        if (!(range >> first)) continue;
        if (!(range >> dash >> last)) last = first;
        for (int number = first; number <= last; number++) numbers.push_back(number);
    }
    return numbers;
}

// Returns whether the system took the order.
bool interleave_pages(void* begin, size_t bytes) {
    constexpr int interleaved = 3, move_pages = 2;   // MPOL_INTERLEAVE, MPOL_MF_MOVE
    constexpr size_t bits = 8 * sizeof(unsigned long);
    std::vector<unsigned long> mask(static_cast<size_t>(spread.back().number) / bits + 1);
    for (const Node& node : spread) mask[node.number / bits] |= 1UL << (node.number % bits);
    // The kernel reads one bit less than it is told.
    return syscall(SYS_mbind, begin, bytes, interleaved, mask.data(), mask.size() * bits + 1, move_pages) == 0;
}
#endif

}  // namespace

std::vector<Node> memory_nodes(const std::string& root) {
    std::vector<Node> nodes;
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return nodes;
    const std::string folder = root + "/sys/devices/system/node/";
    for (int number : numbers_in(text_of(folder + "has_memory"))) {
        Node node{number, {}};
        for (int each : numbers_in(text_of(folder + "node" + std::to_string(number) + "/cpulist"))) {
            if (each < CPU_SETSIZE && CPU_ISSET(each, &allowed)) node.processors.push_back(each);
        }
        if (!node.processors.empty()) nodes.push_back(node);
    }
#else
    (void)root;
#endif
    return nodes;
}

int spread_over_nodes(const std::string& root) {
    spread.clear();
    std::vector<Node> nodes = memory_nodes(root);
    const int count = static_cast<int>(nodes.size());
    if (count < 2) return count;
    spread = std::move(nodes);
#if defined(__linux__)
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* trial = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (trial == MAP_FAILED) throw std::bad_alloc();
    const bool allowed = interleave_pages(trial, page);
    const int error = errno;
    munmap(trial, page);
    if (!allowed) {
        spread.clear();
        throw std::runtime_error(std::strerror(error));
    }
#endif
    return count;
}

void interleave(void* begin, size_t bytes) {
#if defined(__linux__)
    if (spread.empty()) return;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const uintptr_t first = (address + page - 1) / page * page, last = (address + bytes) / page * page;
    if (first < last) interleave_pages(reinterpret_cast<void*>(first), last - first);
#else
    (void)begin, (void)bytes;
#endif
}

void stay_on_node(int thread) {
#if defined(__linux__)
    if (spread.empty()) return;
    cpu_set_t processors;
    CPU_ZERO(&processors);
    for (int each : spread[static_cast<size_t>(thread) % spread.size()].processors) CPU_SET(each, &processors);
    sched_setaffinity(0, sizeof processors, &processors);
#else
    (void)thread;
#endif
}

}  // namespace puna
