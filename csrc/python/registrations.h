// Each area of the extension adds its functions to the module itself.
#pragma once
#include <nanobind/nanobind.h>

namespace puna {

void register_array(nanobind::module_& m);    // numpy
void register_system(nanobind::module_& m);   // threads and CPU features
void register_matrix(nanobind::module_& m);   // packed matrices, linear, embedding
void register_experts(nanobind::module_& m);  // mixtures of experts
void register_program(nanobind::module_& m);  // recorded kernel calls
void register_recurrent(nanobind::module_& m);  // short convolutions, linear attention
void register_sample(nanobind::module_& m);   // sampling from logits
void register_sets(nanobind::module_& m);     // which levels run the same code
void register_rows(nanobind::module_& m);     // attention, norms, rotary embedding, gates, cache writes

}  // namespace puna
