// The capabilities of this processor, and the number of its cores this process may use.
#pragma once
#include <string>
#include <vector>

#include "core/level.h"

namespace puna {

// Uses the level `name` for everything built from now on. Returns false if this processor cannot run it.
bool set_cpu_level(const std::string& name);

// The levels this processor can run, the best one last.
std::vector<CpuLevel> runnable_cpu_levels();

const char* cpu_level_name(CpuLevel level);

// Names of the instruction sets found, for `features()`.
std::vector<std::string> cpu_features();

// Cores allowed by the smallest CPU quota between this process's cgroup (version 1 or 2) and the root, or 0 if there is
// none. `root` is a prefix of /proc and /sys, "" except in tests.
double cgroup_cores(const std::string& root);

// Physical cores this process may run on, at most the cgroup's CPU quota, at least 1.
int usable_cores();

}  // namespace puna
