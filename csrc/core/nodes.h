// The nodes of a machine with several memories (NUMA): groups of processors, each nearer to one memory than to the
// others.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace puna {

struct Node {
    int number = 0;
    std::vector<int> processors;   // those that this process may use
};

// The nodes that have memory and processors this process may use. `root` is a prefix of /sys, "" except in tests.
std::vector<Node> memory_nodes(const std::string& root);

// From now on, spreads what is given to `interleave` over the nodes, and has the pool's new threads stay on a node each,
// in turn. Returns the number of nodes; with fewer than two, nothing changes. Throws std::runtime_error if the system
// forbids it.
int spread_over_nodes(const std::string& root);

// Takes the pages of [begin, begin + bytes) from all nodes in turn, so that every thread reads at the speed of all
// memories together, wherever it runs. Only pages within the range count. Does nothing unless memory is spread.
void interleave(void* begin, size_t bytes);

// Keeps the calling thread of the pool on its node, `thread` modulo their number. Does nothing unless memory is spread.
void stay_on_node(int thread);

}  // namespace puna
