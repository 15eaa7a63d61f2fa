#include "core/cpu.h"

#include <atomic>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#endif

namespace puna {
namespace {

#if defined(__x86_64__)
struct X86 {
    bool avx2 = false, fma = false, f16c = false, avx512 = false, avx512_vnni = false, avx_vnni = false, amx = false;
    bool amd = false;
};

// Whether the system lets this process use AMX tiles: Linux requires one request per process.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr long request_permission = 0x1023, tile_data = 18;   // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

X86 read_x86() {
    X86 found;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return found;
    found.amd = b == signature_AMD_ebx && d == signature_AMD_edx && c == signature_AMD_ecx;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    const bool osxsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
    if (!osxsave) return found;
    unsigned xcr0 = 0, high = 0;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    const bool ymm = (xcr0 & 0x06) == 0x06;   // the system saves AVX registers
    const bool zmm = (xcr0 & 0xe6) == 0xe6;   // and the AVX-512 ones
    const bool tiles = (xcr0 & 0x60000) == 0x60000;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx2 = ymm && (b >> 5 & 1);
    found.fma = ymm && fma;
    found.f16c = ymm && f16c;
    const bool f = b >> 16 & 1, dq = b >> 17 & 1, bw = b >> 30 & 1, vl = b >> 31 & 1;
    found.avx512 = zmm && f && dq && bw && vl;
    found.avx512_vnni = found.avx512 && (c >> 11 & 1);
    const bool amx_tiles = d >> 24 & 1, amx_bytes = d >> 25 & 1, amx_brain = d >> 22 & 1;
    found.amx = tiles && found.avx512_vnni && amx_tiles && amx_bytes && amx_brain && may_use_tiles();
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) found.avx_vnni = ymm && (a >> 4 & 1);
    return found;
}

const X86& x86() {
    static const X86 found = read_x86();
    return found;
}
#endif

#if defined(__aarch64__)
bool has_dotprod() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
    return true;   // every Apple processor that runs macOS on arm64
#else
    return false;
#endif
}
#endif

// The level called `name`, if this processor can run it.
std::optional<CpuLevel> runnable_level(const std::string& name) {
    for (CpuLevel each : runnable_cpu_levels()) {
        if (name == cpu_level_name(each)) return each;
    }
    return std::nullopt;
}

std::atomic<CpuLevel>& current_level() {
    static std::atomic<CpuLevel> level = [] {
        const char* wanted = std::getenv("PUNA_CPU");
        return runnable_level(wanted ? wanted : "").value_or(runnable_cpu_levels().back());
    }();
    return level;
}

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// Cores that a quota in one cgroup folder allows, or 0 if there is none.
double quota_in(const std::string& folder) {
    std::istringstream v2(first_line(folder + "/cpu.max"));   // "max 100000" or "150000 100000"
    double quota = 0, period = 0;
    if (v2 >> quota >> period && quota > 0 && period > 0) return quota / period;
    std::istringstream v1(first_line(folder + "/cpu.cfs_quota_us") + " " + first_line(folder + "/cpu.cfs_period_us"));
    if (v1 >> quota >> period && quota > 0 && period > 0) return quota / period;
    return 0;
}

}  // namespace

bool made_by_amd() {
#if defined(__x86_64__)
    return x86().amd;
#else
    return false;
#endif
}

double cgroup_cores(const std::string& root) {
    double least = 0;
    const auto take = [&least](double cores) {
        if (cores > 0 && (least == 0 || cores < least)) least = cores;
    };
    std::ifstream file(root + "/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {   // "id:controllers:path"
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        std::string mounted;
        if (controllers.empty()) mounted = root + "/sys/fs/cgroup";
        else if (("," + controllers + ",").find(",cpu,") != std::string::npos) mounted = root + "/sys/fs/cgroup/cpu";
        else continue;
        std::string path = line.substr(second + 1);
        while (path.size() > 1) {
            take(quota_in(mounted + path));
            path.erase(path.rfind('/'));
        }
        take(quota_in(mounted));
    }
    return least;
}

std::vector<CpuLevel> runnable_cpu_levels() {
    std::vector<CpuLevel> levels = {CpuLevel::portable};
#if defined(__x86_64__)
    if (!x86().avx2 || !x86().fma || !x86().f16c) return levels;
    levels.push_back(CpuLevel::avx2);
#if defined(PUNA_WITH_AVX_VNNI)
    if (x86().avx_vnni) levels.push_back(CpuLevel::avx_vnni);
#endif
#if defined(PUNA_WITH_AVX512)
    if (x86().avx512_vnni) levels.push_back(CpuLevel::avx512);
#endif
#if defined(PUNA_WITH_AMX)
    if (x86().amx) levels.push_back(CpuLevel::amx);
#endif
#elif defined(__aarch64__)
    levels.push_back(CpuLevel::neon);
#if defined(PUNA_WITH_DOTPROD)
    if (has_dotprod()) levels.push_back(CpuLevel::dotprod);
#endif
#endif
    return levels;
}

CpuLevel cpu_level() { return current_level().load(std::memory_order_relaxed); }

CpuLevel vector_level(CpuLevel level) {
    switch (level) {
        case CpuLevel::avx_vnni: return CpuLevel::avx2;
        case CpuLevel::amx: return CpuLevel::avx512;
        case CpuLevel::dotprod: return CpuLevel::neon;
        default: return level;
    }
}

bool set_cpu_level(const std::string& name) {
    const std::optional<CpuLevel> level = runnable_level(name);
    if (level) current_level().store(*level, std::memory_order_relaxed);
    return level.has_value();
}

const char* cpu_level_name(CpuLevel level) {
    switch (level) {
        case CpuLevel::avx2: return "avx2";
        case CpuLevel::avx_vnni: return "avx_vnni";
        case CpuLevel::avx512: return "avx512";
        case CpuLevel::amx: return "amx";
        case CpuLevel::neon: return "neon";
        case CpuLevel::dotprod: return "dotprod";
        default: return "portable";
    }
}

std::vector<std::string> cpu_features() {
    std::vector<std::string> names;
#if defined(__x86_64__)
    const X86& x = x86();
    if (x.avx2) names.push_back("avx2");
    if (x.fma) names.push_back("fma");
    if (x.f16c) names.push_back("f16c");
    if (x.avx_vnni) names.push_back("avx_vnni");
    if (x.avx512) names.push_back("avx512");
    if (x.avx512_vnni) names.push_back("avx512_vnni");
    if (x.amx) names.push_back("amx");
#elif defined(__aarch64__)
    names.push_back("neon");
    if (has_dotprod()) names.push_back("dotprod");
#endif
    return names;
}

int usable_cores() {
    int cores = 0;
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        std::set<std::string> siblings;   // one entry per physical core: the list of its hardware threads
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &allowed)) continue;
            const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
            const std::string list = first_line(folder + "thread_siblings_list");
            siblings.insert(list.empty() ? "cpu" + std::to_string(cpu) : list);
        }
        cores = static_cast<int>(siblings.size());
    }
#endif
    if (cores < 1) cores = static_cast<int>(std::thread::hardware_concurrency());
    const double quota = cgroup_cores("");
    // A fraction of a core is rounded up: 1.5 cores keep two threads busy three quarters of the time.
    if (quota > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota)));
    return std::max(cores, 1);
}

}  // namespace puna
