#include "registrations.h"

NB_MODULE(_native, m) {
    m.doc() = "Kernels of Puna, on arrays of numpy.";
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
