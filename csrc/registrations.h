// Each area of the extension adds its functions to the module itself.
#pragma once
#include <nanobind/nanobind.h>

namespace puna {

void register_system(nanobind::module_& m);   // threads and CPU features

}  // namespace puna
