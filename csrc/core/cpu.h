// What this processor can do, and how many of its cores we may use.
#pragma once
#include <string>
#include <vector>

#include "core/level.h"

namespace puna {

// Uses the level `name` for what is built from now on. Returns false if this processor cannot run it.
bool set_cpu_level(const std::string& name);

// The levels this processor can run, the best one last.
std::vector<CpuLevel> runnable_cpu_levels();

// Whether the processor is AMD's, which wants to be told earlier what will be read.
bool made_by_amd();

const char* cpu_level_name(CpuLevel level);

// Names of the instruction sets found, for `features()`.
std::vector<std::string> cpu_features();

// Cores the smallest CPU quota allows on the way from this process's cgroup (version 1 or 2) up to the root, or 0
// when there is none. `root` comes before /proc and /sys, "" except in tests.
double cgroup_cores(const std::string& root);

// Physical cores this process may run on, at most the cgroup's CPU quota, at least 1.
int usable_cores();

}  // namespace puna
