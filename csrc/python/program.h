// Kernel calls recorded as they are made, to be repeated in one go.
#pragma once
#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace puna {

// The calls made through `perform` on one thread between begin() and end(), with their arguments. They read and write
// the same addresses in every run: the contents are the caller's business.
class Program {
public:
    Program() = default;
    Program(const Program&) = delete;
    ~Program();

    // `memory` is a Python object with the methods `empty(shape, dtype)`, which returns the arrays that kernels write,
    // and `uses(array)`, which is called for those they read. Throws std::logic_error if another program is being
    // recorded on this thread.
    void begin(nanobind::object memory);
    void end();

    void add(const char* name, std::function<void()> call);
    nanobind::object empty(const intptr_t* shape, int dims, const char* dtype);
    void uses(PyObject* array);

    // Makes all calls in order. An exception ends the run.
    void run() const;

    // Like run(); returns the seconds each call took.
    std::vector<double> run_timed() const;

    std::vector<std::string> names() const;

    // The program being recorded on this thread, or null.
    static Program* recording();

private:
    std::vector<std::pair<const char*, std::function<void()>>> calls_;
    nanobind::object memory_;   // while recording
};

// Makes a kernel call without Python's lock, and records it if a program is being recorded. Every function of the
// extension that a model's forward pass may call must do its work in here, including its checks of values, and `call`
// must hold everything it needs by value; otherwise the call would be missing from the replayed pass.
template <class Call>
void perform(const char* name, Call call) {
    nanobind::gil_scoped_release release;
    call();
    if (Program* program = Program::recording()) program->add(name, std::move(call));
}

}  // namespace puna
