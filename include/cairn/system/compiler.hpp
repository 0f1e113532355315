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

// Bodies lie in impl/, apart from the contracts. Each page brings its own unless a library or a file of the user's
// has them all: CAIRN_COMPILED says so, and the CMake target cairn::compiled sets it. CAIRN_IMPLEMENTATION marks
// the files that hold these bodies; <cairn/implementation.hpp> sets it.
#if defined(CAIRN_IMPLEMENTATION)
#define CAIRN_BODY
#else
#define CAIRN_BODY inline
#endif
