// What this processor can do, and how many of its cores we may use.
#pragma once
#include <string>
#include <vector>

namespace puna {

// Instruction-set levels the kernels are written for, best last. A level includes the ones before it.
enum class CpuLevel { portable = 0, avx2 = 1, avx512 = 2, neon = 3 };

// The best level of this processor. AVX2 means AVX2 + FMA + F16C; AVX-512 means F, BW, DQ, VL and VNNI.
CpuLevel detected_cpu_level();

// The level in use: the detected one, or a lower one chosen with PUNA_CPU or `limit_cpu_level`.
CpuLevel cpu_level();

// Uses at most `name` ("portable", "avx2", "avx512", "neon") for what is built from now on.
// Returns false if the name is unknown or this processor cannot run it.
bool limit_cpu_level(const std::string& name);

const char* cpu_level_name(CpuLevel level);

// Names of the instruction sets found, for `features()`.
std::vector<std::string> cpu_features();

// Physical cores this process may run on, at most the cgroup's CPU quota, at least 1.
int usable_cores();

}  // namespace puna
