#include "program.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <stdexcept>

#include "registrations.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

thread_local Program* current = nullptr;

}  // namespace

Program* Program::recording() { return current; }

Program::~Program() { end(); }

void Program::begin(nb::object memory) {
    if (current) throw std::logic_error("a program is being recorded already");
    memory_ = std::move(memory);
    current = this;
}

void Program::end() {
    if (current == this) current = nullptr;
    memory_.reset();
}

nb::object Program::empty(const intptr_t* shape, int dims, const char* dtype) {
    nb::list sizes;
    for (int i = 0; i < dims; i++) sizes.append(static_cast<int64_t>(shape[i]));
    return memory_.attr("empty")(nb::tuple(sizes), dtype);
}

void Program::uses(PyObject* array) { memory_.attr("uses")(nb::handle(array)); }

void Program::add(const char* name, std::function<void()> call) { calls_.emplace_back(name, std::move(call)); }

void Program::run() const {
    for (const auto& call : calls_) call.second();
}

std::vector<double> Program::run_timed() const {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    for (const auto& call : calls_) {
        const Clock::time_point begin = Clock::now();
        call.second();
        seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return seconds;
}

std::vector<std::string> Program::names() const {
    std::vector<std::string> result;
    for (const auto& call : calls_) result.emplace_back(call.first);
    return result;
}

void register_program(nb::module_& m) {
    nb::class_<Program>(m, "Program", "Kernel calls that were noted while they were made.")
        .def(nb::init<>())
        .def("begin", &Program::begin, "memory"_a,
             "Notes the kernel calls of this thread from now on. Raises RuntimeError inside another recording.\n\n"
             "Kernels write to `memory.empty(shape, dtype)`; `memory.uses(array)` is told of what they read.")
        .def("end", &Program::end, "Stops noting.")
        .def("run", &Program::run, nb::call_guard<nb::gil_scoped_release>(),
             "Makes all calls again. The addresses they were given must still be valid.")
        .def("run_timed", &Program::run_timed, nb::call_guard<nb::gil_scoped_release>(),
             "As run(); returns the seconds each call took.")
        .def_prop_ro("names", &Program::names, "The functions called, in order.");
}

}  // namespace puna
