// Functions of the standard library that older systems lack; only in wheels (core/old_systems.h).
#include <new>

#if defined(PUNA_OLD_SYSTEMS) && defined(__GLIBCXX__)
#define PUNA_HIDDEN __attribute__((visibility("hidden")))

namespace std {

// Called by containers that are asked for more elements than memory has addresses.
PUNA_HIDDEN void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std

// An exception_ptr is one pointer, and older systems have its copy constructor and its destructor, but not the counting
// that newer headers call for them.
extern "C" {

void puna_copy_exception(void** made, void* const* from) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void puna_drop_exception(void** held) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

PUNA_HIDDEN void puna_count_exception(void** held) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void puna_count_exception(void** held) {
    void* counted;   // never dropped
    puna_copy_exception(&counted, held);
}

PUNA_HIDDEN void puna_release_exception(void** held) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void puna_release_exception(void** held) {
    void* last = *held;
    *held = nullptr;
    puna_drop_exception(&last);
}
}
#endif
