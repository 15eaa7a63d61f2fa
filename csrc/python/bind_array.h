// Arrays passed to and from Python: numpy's, read directly.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace puna {

// An argument that should be an array, inspected by `array` and `stored` below. Borrowed.
struct Argument {
    PyObject* object = nullptr;
};

// The same, but None stands for no array.
struct OptionalArgument {
    PyObject* object = nullptr;

    bool is_none() const { return !object || object == Py_None; }
    Argument argument() const { return {object}; }
};

constexpr int max_dims = 5;

// A contiguous array's description; its memory is valid as long as Python holds the array.
template <class T>
struct Array {
    T* data = nullptr;
    int dims = -1;   // -1: there is no array
    intptr_t shape[max_dims] = {};
    int64_t size = 0;   // values in all

    bool given() const { return dims >= 0; }

    bool is(std::initializer_list<int64_t> wanted) const {
        if (dims != static_cast<int>(wanted.size())) return false;
        const intptr_t* at = shape;
        for (int64_t length : wanted) {
            if (*at++ != length) return false;
        }
        return true;
    }

    bool same_shape(const intptr_t* other, int other_dims) const {
        if (dims != other_dims) return false;
        for (int i = 0; i < dims; i++) {
            if (shape[i] != other[i]) return false;
        }
        return true;
    }

    int64_t last() const { return dims > 0 ? shape[dims - 1] : 0; }
};

// Returns `argument` as an array of T: float, int32_t, int64_t or uint8_t. Throws a ValueError that begins with `name`
// unless it is a contiguous numpy array of that type.
template <class T>
Array<T> array(Argument argument, const char* name);

// The same for an array that is written.
template <class T>
Array<T> written(Argument argument, const char* name);

// The same, but no array for None.
template <class T>
Array<T> optional_array(OptionalArgument argument, const char* name) {
    return argument.is_none() ? Array<T>{} : array<T>(argument.argument(), name);
}

// A cache's keys, values or states, stored as one of the types of `KVType`: the numbers' shape and the bytes.
struct Stored {
    void* data;
    int type;   // numbered as in `KVType` and GGUF
    int dims;
    int64_t shape[max_dims];   // of the numbers: [rows, ..., last]
};

Stored stored(Argument argument, int type, const char* name);

// A new array of T at an address that is a multiple of 64. While a program is recorded it is in the program's memory.
template <class T>
struct NewArray {
    nanobind::object object;
    T* data;
};

template <class T>
NewArray<T> new_array(const intptr_t* shape, int dims);

template <class T>
NewArray<T> new_array(std::initializer_list<intptr_t> shape) {
    return new_array<T>(shape.begin(), static_cast<int>(shape.size()));
}

// A new array with the shape of another.
template <class T, class S>
NewArray<T> new_array_like(const Array<S>& other) {
    return new_array<T>(other.shape, other.dims);
}

// The ValueError for arrays whose shapes do not fit together; it names the shapes.
std::invalid_argument misfit(const char* operation, std::initializer_list<std::pair<const char*, Argument>> arrays);

// The shape as text, like [2, 3], or a description of an object that is not an array.
std::string shape_text(Argument argument);

}  // namespace puna

namespace nanobind::detail {

template <>
struct type_caster<puna::Argument> {
    NB_TYPE_CASTER(puna::Argument, const_name("numpy.ndarray"))
    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        value.object = source.ptr();
        return true;
    }
};

template <>
struct type_caster<puna::OptionalArgument> {
    NB_TYPE_CASTER(puna::OptionalArgument, const_name("numpy.ndarray | None"))
    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        value.object = source.ptr();
        return true;
    }
};

template <class T>
struct type_caster<puna::NewArray<T>> {
    NB_TYPE_CASTER(puna::NewArray<T>, const_name("numpy.ndarray"))
    static handle from_cpp(const puna::NewArray<T>& source, rv_policy, cleanup_list*) noexcept {
        return handle(source.object).inc_ref();
    }
};

}  // namespace nanobind::detail
