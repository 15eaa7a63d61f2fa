#if defined(__linux__)
#include <malloc.h>
#endif

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/cpu.h"
#include "core/nodes.h"
#include "core/pool.h"
#include "registrations.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {

void register_system(nb::module_& m) {
    m.def("features", [] { return cpu_features(); }, "Instruction sets of this CPU that the kernels know.");
    m.def("cpu_level", [] { return std::string(cpu_level_name(cpu_level())); },
          "The kernels in use, one of `cpu_levels()`.");
    m.def(
        "cpu_levels",
        [] {
            std::vector<std::string> names;
            for (CpuLevel level : runnable_cpu_levels()) names.push_back(cpu_level_name(level));
            return names;
        },
        "Sets of kernels this CPU can run, the best one last: 'portable', 'avx2', ...");
    m.def(
        "set_cpu_level",
        [](const std::string& name) {
            if (!set_cpu_level(name)) {
                throw nb::value_error(("this CPU cannot run the kernels '" + name + "'").c_str());
            }
        },
        "name"_a, "Use other kernels for matrices packed from now on (for tests and measurements).");
    m.def(
        "keep_freed_memory",
        [] {
#if defined(__GLIBC__)
            // Activations of a long prompt are tens of megabytes, freed and allocated again in every layer. By default
            // the C library returns such memory each time, and the system has to clear it anew.
            mallopt(M_MMAP_THRESHOLD, 256 << 20);
            mallopt(M_TRIM_THRESHOLD, 256 << 20);
#endif
        },
        "Has this process keep up to 256 MiB of freed memory for the next time.");
    m.def("usable_cores", &usable_cores, "Physical cores this process may use, within its cgroup's quota.");
    m.def("cgroup_cores", &cgroup_cores, "root"_a = "",
          "Cores the cgroup's CPU quota allows, 0 without one; /proc and /sys are looked for under `root`.");
    m.def(
        "memory_nodes",
        [](const std::string& root) {
            std::vector<std::vector<int>> nodes;
            for (const Node& node : memory_nodes(root)) nodes.push_back(node.processors);
            return nodes;
        },
        "root"_a = "",
        "The processors that this process may use, by node of memory; /sys is looked for under `root`.");
    m.def("spread_over_nodes", &spread_over_nodes, "root"_a = "",
          "Spreads weights packed from now on, and the pool's threads, over the nodes of memory. Returns how many\n"
          "there are; with fewer than two, nothing changes. Raises RuntimeError if the system forbids it.");
    m.def(
        "interleave", [](nb::ndarray<uint8_t, nb::c_contig> memory) { interleave(memory.data(), memory.nbytes()); },
        "memory"_a, "Takes the pages of `memory` from all nodes in turn, if weights are spread over them.");
    m.def("threads", &thread_count, "Threads the kernels use.");
    m.def("set_threads", &set_thread_count, "count"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Sets how many threads the kernels use; at least 1.");
}

}  // namespace puna
