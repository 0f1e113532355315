// SPDX-License-Identifier: Apache-2.0
#pragma once
// What compiles cairn, asked before anything else: each page of cairn comes here first, so that an old
// compiler says one sentence. CairnCompiler.cmake asks the same.

#if __cplusplus < 202002L
#error "cairn needs C++20: compile with -std=c++20, or link the CMake target cairn::cairn, which asks for it"
#include <cairn/system/needs_cpp20>  // ends the compilation, which #error does not
#elif defined(__clang__) && __clang_major__ < 16
#error "cairn needs clang 16 or later, or g++ 12 or later: this clang is older"
#include <cairn/system/needs_a_newer_compiler>
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "cairn needs g++ 12 or later, or clang 16 or later: this g++ is older"
#include <cairn/system/needs_a_newer_compiler>
#endif

#include <cairn/version.hpp>

// Bodies lie in impl/, apart from the contracts. Each page brings its own unless a library or a file of the user's
// has them all: CAIRN_COMPILED says so, and the CMake targets cairn::compiled and cairn::contracts set it.
// CAIRN_IMPLEMENTATION marks the files that hold these bodies: those of the library, or the one that includes
// <cairn/implementation.hpp>.
#if defined(CAIRN_IMPLEMENTATION)
#define CAIRN_BODY
#else
#define CAIRN_BODY inline
#endif

// All files of a program take cairn in the same way and in the same version, for what is inline in one file and in a
// library for another is no program of C++. The linker says so: each way and version defines the symbol below, and
// files of one way and version share theirs. It is made inside a function, where link-time optimisation leaves it
// alone; nobody calls that.
#define CAIRN_DETAIL_NAME_OF(before, x, y, z) before##_##x##_##y##_##z
#define CAIRN_DETAIL_NAME(before, x, y, z) CAIRN_DETAIL_NAME_OF(before, x, y, z)
#define CAIRN_DETAIL_VERSIONED(before) \
  CAIRN_DETAIL_NAME(before, CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH)
#define CAIRN_DETAIL_TEXT_OF(x) #x
#define CAIRN_DETAIL_TEXT(x) CAIRN_DETAIL_TEXT_OF(x)
#if defined(CAIRN_COMPILED)
#define CAIRN_DETAIL_WAY CAIRN_DETAIL_VERSIONED(cairn_compiled)
#else
#define CAIRN_DETAIL_WAY CAIRN_DETAIL_VERSIONED(cairn_header_only)
#endif
extern "C" [[gnu::used, gnu::noinline, gnu::visibility("hidden")]] inline void CAIRN_DETAIL_WAY() {
  asm volatile(".pushsection .rodata.cairn_way,\"aG\",%progbits," CAIRN_DETAIL_TEXT(CAIRN_DETAIL_WAY) "_symbol,comdat\n"
               ".hidden cairn_is_taken_in_two_ways_or_versions_by_files_of_one_program\n"
               ".globl cairn_is_taken_in_two_ways_or_versions_by_files_of_one_program\n"
               "cairn_is_taken_in_two_ways_or_versions_by_files_of_one_program: .byte 0\n"
               ".popsection");
}

#if defined(CAIRN_COMPILED)
#define CAIRN_DETAIL_BODIES \
  CAIRN_DETAIL_VERSIONED(link_cairn_compiled_or_include_implementation_hpp_in_one_file_of_cairn)
// Defined beside the bodies; its name says what to do where it is missing.
extern "C" const char CAIRN_DETAIL_BODIES;
namespace cairn {
inline namespace v1 {
namespace detail {
[[gnu::used]] inline const char* const bodies_of_this_version = &CAIRN_DETAIL_BODIES;
}
}  // namespace v1
}  // namespace cairn
#endif

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/compiler.ipp>
#endif
