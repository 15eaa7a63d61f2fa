// Test the kernels against plain double-precision arithmetic, at the levels that the arguments name: `all` that this
// processor runs, which is the default, the `best`, or some by name. There is no Python, so it can be built for another
// processor and run in an emulator. Prints a line per level; fails if a check fails.
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
    std::vector<std::string> wanted(arguments + 1, arguments + count), names;
    if (wanted.empty()) wanted = {"all"};
    for (const std::string& name : wanted) {
        if (name == "best") {
            names.push_back(cpu_level_name(runnable_cpu_levels().back()));
        } else if (name == "all") {
            for (const CpuLevel level : runnable_cpu_levels()) names.push_back(cpu_level_name(level));
        } else {
            names.push_back(name);
        }
    }
    for (const std::string& name : names) {
        if (!set_cpu_level(name)) {
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
        std::printf("%s: %d checks, %d failed\n", name.c_str(), test::checks - checks_before,
                    test::failures - failures_before);
        std::fflush(stdout);
    }
    tcdrain(STDOUT_FILENO);   // a serial console loses what it has not sent when the system's first process ends
    return test::failures == 0 ? 0 : 1;
}
