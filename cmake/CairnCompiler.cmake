# SPDX-License-Identifier: Apache-2.0
# cairn_check_compiler(OUT): a sentence in OUT where this compiler is too old for cairn, else nothing; system/compiler.hpp asks the same.
function(cairn_check_compiler out)
  set(${out} "" PARENT_SCOPE)
  set(needs "cairn needs g++ 12 or later, or clang 16 or later")
  if((CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
     OR (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12))
    set(${out} "${needs}; ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}: \
choose another one with -DCMAKE_CXX_COMPILER=" PARENT_SCOPE)
  endif()
endfunction()
