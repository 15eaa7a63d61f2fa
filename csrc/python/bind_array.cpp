#include "bind_array.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <nanobind/stl/string.h>
#include <numpy/arrayobject.h>

#include <cstdlib>
#include <new>

#include "kv/kv.h"
#include "program.h"
#include "registrations.h"

namespace nb = nanobind;

namespace puna {
namespace {

constexpr size_t alignment = 64;

template <class T>
constexpr int type_number();
template <>
constexpr int type_number<float>() { return NPY_FLOAT32; }
template <>
constexpr int type_number<int32_t>() { return NPY_INT32; }
template <>
constexpr int type_number<int64_t>() { return NPY_INT64; }
template <>
constexpr int type_number<uint8_t>() { return NPY_UINT8; }

template <class T>
constexpr const char* type_name();
template <>
constexpr const char* type_name<float>() { return "float32"; }
template <>
constexpr const char* type_name<int32_t>() { return "int32"; }
template <>
constexpr const char* type_name<int64_t>() { return "int64"; }
template <>
constexpr const char* type_name<uint8_t>() { return "uint8"; }

// Some systems have two C types of the same size, which numpy distinguishes.
template <class T>
bool has_type(PyArrayObject* array) {
    const int number = PyArray_TYPE(array);
    if (number == type_number<T>()) return true;
    if (sizeof(T) == sizeof(long) && std::is_integral_v<T> && std::is_signed_v<T>) {
        return number == NPY_LONG || (sizeof(long long) == sizeof(long) && number == NPY_LONGLONG);
    }
    return false;
}

std::string dtype_text(PyArrayObject* array) {
    return nb::cast<std::string>(nb::str(nb::handle(reinterpret_cast<PyObject*>(PyArray_DESCR(array)))));
}

std::invalid_argument unfit(Argument argument, const char* name, const std::string& expected) {
    std::string given = nb::type_name(nb::handle(argument.object).type()).c_str();
    if (PyArray_Check(argument.object)) {
        auto* array = reinterpret_cast<PyArrayObject*>(argument.object);
        given = std::string(PyArray_IS_C_CONTIGUOUS(array) ? "contiguous " : "strided ") + dtype_text(array) + " " +
                shape_text(argument);
    }
    return std::invalid_argument(std::string(name) + ": expected contiguous " + expected + ", got " + given);
}

bool readable(PyArrayObject* array) { return PyArray_IS_C_CONTIGUOUS(array) && PyArray_ISBEHAVED_RO(array); }

void note(PyObject* object) {
    if (Program* program = Program::recording()) program->uses(object);
}

void free_memory(PyObject* capsule) { std::free(PyCapsule_GetPointer(capsule, nullptr)); }

}  // namespace

std::string shape_text(Argument argument) {
    if (!PyArray_Check(argument.object)) return nb::type_name(nb::handle(argument.object).type()).c_str();
    auto* array = reinterpret_cast<PyArrayObject*>(argument.object);
    std::string text = "[";
    for (int i = 0; i < PyArray_NDIM(array); i++) {
        text += (i ? ", " : "") + std::to_string(PyArray_DIM(array, i));
    }
    return text + "]";
}

std::invalid_argument misfit(const char* operation, std::initializer_list<std::pair<const char*, Argument>> arrays) {
    std::string text = std::string(operation) + ": shapes do not fit together:";
    const char* separator = " ";
    for (const auto& [name, argument] : arrays) {
        if (!argument.object || argument.object == Py_None) continue;
        text += separator + std::string(name) + " " + shape_text(argument);
        separator = ", ";
    }
    return std::invalid_argument(text);
}

template <class T>
Array<T> array(Argument argument, const char* name) {
    auto* found = reinterpret_cast<PyArrayObject*>(argument.object);
    if (!PyArray_Check(argument.object) || !has_type<T>(found) || !readable(found) ||
        PyArray_NDIM(found) > max_dims) {
        throw unfit(argument, name, type_name<T>());
    }
    note(argument.object);
    Array<T> result;
    result.data = static_cast<T*>(PyArray_DATA(found));
    result.dims = PyArray_NDIM(found);
    for (int i = 0; i < result.dims; i++) result.shape[i] = PyArray_DIM(found, i);
    result.size = PyArray_SIZE(found);
    return result;
}

template <class T>
Array<T> written(Argument argument, const char* name) {
    const Array<T> found = array<T>(argument, name);
    if (!PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject*>(argument.object))) {
        throw nb::value_error((std::string(name) + ": expected an array that can be written").c_str());
    }
    return found;
}

Stored stored(Argument argument, int type, const char* name) {
    auto* found = reinterpret_cast<PyArrayObject*>(argument.object);
    int number = NPY_UINT8, block_bytes = 0;
    switch (KVType(type)) {
        case KVType::f32: number = NPY_FLOAT32; break;
        case KVType::f16: number = NPY_FLOAT16; break;
        case KVType::bf16: number = NPY_UINT16; break;
        case KVType::q8_0: block_bytes = q8_0_bytes; break;
        case KVType::q4_0: block_bytes = q4_0_bytes; break;
        default: throw nb::value_error((std::string(name) + ": nothing is stored as type " + std::to_string(type)).c_str());
    }
    const int extra = block_bytes ? 1 : 0;
    if (!PyArray_Check(argument.object) || PyArray_TYPE(found) != number || !readable(found) ||
        PyArray_NDIM(found) < 1 + extra || PyArray_NDIM(found) > max_dims ||
        (block_bytes && PyArray_DIM(found, PyArray_NDIM(found) - 1) != block_bytes)) {
        throw unfit(argument, name, "storage of type " + std::to_string(type));
    }
    note(argument.object);
    Stored result = {PyArray_DATA(found), type, PyArray_NDIM(found) - extra, {}};
    for (int i = 0; i < result.dims; i++) result.shape[i] = PyArray_DIM(found, i);
    if (block_bytes) result.shape[result.dims - 1] *= kv_block;
    return result;
}

template <class T>
NewArray<T> new_array(const intptr_t* shape, int dims) {
    if (Program* program = Program::recording()) {
        nb::object made = program->empty(shape, dims, type_name<T>());
        return {made, static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made.ptr())))};
    }
    size_t bytes = sizeof(T);
    for (int i = 0; i < dims; i++) bytes *= static_cast<size_t>(shape[i]);
    void* memory = std::malloc(bytes + alignment);
    if (!memory) throw std::bad_alloc();
    void* data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory) + alignment) & ~(alignment - 1));
    PyObject* owner = PyCapsule_New(memory, nullptr, free_memory);
    if (!owner) {
        std::free(memory);
        throw nb::python_error();
    }
    PyObject* made = PyArray_NewFromDescr(&PyArray_Type, PyArray_DescrFromType(type_number<T>()), dims,
                                          const_cast<intptr_t*>(shape), nullptr, data, NPY_ARRAY_CARRAY, nullptr);
    if (!made) {
        Py_DECREF(owner);
        throw nb::python_error();
    }
    if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made), owner) < 0) {
        Py_DECREF(made);
        throw nb::python_error();
    }
    return {nb::steal<nb::object>(made), static_cast<T*>(data)};
}

template Array<float> array(Argument, const char*);
template Array<int32_t> array(Argument, const char*);
template Array<int64_t> array(Argument, const char*);
template Array<uint8_t> array(Argument, const char*);
template Array<float> written(Argument, const char*);
template Array<int32_t> written(Argument, const char*);
template NewArray<float> new_array(const intptr_t*, int);
template NewArray<int32_t> new_array(const intptr_t*, int);
template NewArray<int64_t> new_array(const intptr_t*, int);

void register_array(nb::module_&) {
    if (_import_array() < 0) throw nb::python_error();
}

}  // namespace puna
