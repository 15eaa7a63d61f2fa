#include "registrations.h"

NB_MODULE(_native, m) {
    m.doc() = "Kernels of Puna, on arrays of numpy.";
    // A model that a thread still uses when its process ends is no leak, and no news to whoever runs it.
    nanobind::set_leak_warnings(false);
    puna::register_array(m);
    puna::register_system(m);
    puna::register_matrix(m);
    puna::register_experts(m);
    puna::register_rows(m);
    puna::register_recurrent(m);
    puna::register_sample(m);
    puna::register_sets(m);
    puna::register_program(m);
}
