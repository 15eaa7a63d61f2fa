// A function of the standard library that older systems lack; only in wheels (core/old_systems.h).
#include <new>

#if defined(PUNA_OLD_SYSTEMS) && defined(__GLIBCXX__)
namespace std {

// Called by containers that are asked for more elements than memory has addresses.
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
#endif
