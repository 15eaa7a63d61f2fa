// Test the kernels against plain double-precision arithmetic, at every level this processor runs or, with arguments, at
// these, of which `best` is the best one. There is no Python, so it can be built for another processor and run in an
// emulator. Prints a line per level; fails if a check fails.
#include <termios.h>
#include <unistd.h>

#include <cstdio>

#include "check.h"
#include "core/cpu.h"
#include "core/pool.h"

namespace puna::test {
namespace {

int checks = 0, failures = 0;

}  // namespace

void check(bool good, const std::string& what) {
    checks++;
    if (good) return;
    if (++failures <= 20) std::printf("%s: %s\n", cpu_level_name(cpu_level()), what.c_str());
}

}  // namespace puna::test

int main(int count, char** arguments) {
    using namespace puna;
    set_thread_count(2);
    std::vector<std::string> names(arguments + 1, arguments + count);
    if (names.empty()) {
        for (const CpuLevel level : runnable_cpu_levels()) names.push_back(cpu_level_name(level));
    }
    for (const std::string& name : names) {
        if (!set_cpu_level(name == "best" ? cpu_level_name(runnable_cpu_levels().back()) : name)) {
            std::printf("this processor does not run the level %s\n", name.c_str());
            return 2;
        }
        const int checks_before = test::checks, failures_before = test::failures;
        test::test_rows();
        test::test_recurrent();
        test::test_linear_attention();
        test::test_sampling();
        test::test_attention();
        test::test_indexer();
        test::test_matrices();
        std::printf("%s: %d checks, %d failed\n", cpu_level_name(cpu_level()), test::checks - checks_before,
                    test::failures - failures_before);
        std::fflush(stdout);
    }
    tcdrain(STDOUT_FILENO);   // where this is the only program, the system may stop before a terminal shows the rest
    return test::failures == 0 ? 0 : 1;
}
