# SPDX-License-Identifier: Apache-2.0
# What cairn's own tests, examples and benchmarks share; users of the library never see it.

add_library(cairn_warnings INTERFACE)
target_compile_options(cairn_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
  $<$<BOOL:${CAIRN_WERROR}>:-Werror>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fconcepts-diagnostics-depth=4>)

# The C interface has an example and tests in C, with the sanitizers of the C++ part where both compilers are of one kind.
enable_language(C)
if(CMAKE_C_COMPILER_ID STREQUAL CMAKE_CXX_COMPILER_ID)
  foreach(config IN ITEMS DEBUG RELEASE)
    set(CMAKE_C_FLAGS_${config} "${CMAKE_CXX_FLAGS_${config}}")
  endforeach()
endif()

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(CAIRN_CCACHE ccache)
  mark_as_advanced(CAIRN_CCACHE)
  if(CAIRN_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CAIRN_CCACHE}")
  endif()
endif()

# Programs in CUDA C++ take minutes to compile, and need a GPU to run: `bash tests/gpu.sh` builds them as well.
option(CAIRN_BUILD_CUDA_PROGRAMS "Build the examples and benchmarks for GPUs with nvcc" OFF)
if(CAIRN_BUILD_CUDA_PROGRAMS)
  if(NOT TARGET cairn::cuda)
    message(FATAL_ERROR "CAIRN_BUILD_CUDA_PROGRAMS needs cairn::cuda and nvcc: install the CUDA toolkit, 12.1 or later")
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)
  endif()
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  enable_language(CUDA)
endif()

# cairn_cuda_programs(): each *.cu of the current folder is one program, in the target cairn_cuda_programs; see cairn_can_link.
function(cairn_cuda_programs)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cu")
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    if(NOT CAIRN_BUILD_CUDA_PROGRAMS)
      message(STATUS "${name}.cu is left out: -DCAIRN_BUILD_CUDA_PROGRAMS=ON builds it where CUDA's compiler is")
      continue()
    endif()
    cairn_can_link(possible ${source})
    if(NOT possible OR NOT CAIRN_CLI11_INCLUDE_DIR)
      continue()
    endif()
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE cairn::cairn CUDA::cublas)
    cairn_link_optional(${name} ${source})
    target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_include_directories(${name} SYSTEM PRIVATE "${CAIRN_CLI11_INCLUDE_DIR}")
    set_target_properties(${name} PROPERTIES CUDA_RUNTIME_LIBRARY Shared)  # that of cairn::cuda, not another beside it
    # CMake before 3.28 does not know which standards newer nvcc have.
    target_compile_options(${name} PRIVATE -std=c++20 -Xcompiler=-Wall,-Wextra)
    if(NOT TARGET cairn_cuda_programs)
      add_custom_target(cairn_cuda_programs)
    endif()
    add_dependencies(cairn_cuda_programs ${name})
  endforeach()
endfunction()

# cairn_program(NAME FILE...): one executable with cairn's warnings.
function(cairn_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE cairn::cairn cairn_warnings)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()

# cairn_link_optional(NAME SOURCE): links the optional targets that the marker lines of SOURCE name to the program NAME:
#   // links: cairn::mpi   needed: see cairn_can_link
#   // uses: cairn::mpi    where it is there; CAIRN_USES_MPI is 1 then
function(cairn_link_optional name source)
  cairn_marker(links ${source} links)
  cairn_marker(uses ${source} uses)
  separate_arguments(links UNIX_COMMAND "${links}")
  separate_arguments(uses UNIX_COMMAND "${uses}")
  foreach(target IN LISTS links)
    target_link_libraries(${name} PRIVATE ${target})
  endforeach()
  foreach(target IN LISTS uses)
    if(TARGET ${target})
      string(REPLACE "cairn::" "" component "${target}")
      string(TOUPPER "${component}" component)
      target_link_libraries(${name} PRIVATE ${target})
      target_compile_definitions(${name} PRIVATE CAIRN_USES_${component}=1)
    endif()
  endforeach()
endfunction()

# cairn_can_link(OUT SOURCE): whether the targets that SOURCE links are there; tells what is left out where not.
function(cairn_can_link out source)
  set(${out} TRUE PARENT_SCOPE)
  cairn_marker(links ${source} links)
  separate_arguments(links UNIX_COMMAND "${links}")
  foreach(target IN LISTS links)
    if(NOT TARGET ${target})
      cmake_path(GET source FILENAME file)
      message(STATUS "${file} is left out: it needs ${target}, and what that needs was not found or not asked for")
      set(${out} FALSE PARENT_SCOPE)
      set_property(GLOBAL APPEND PROPERTY CAIRN_LEFT_OUT "${source}")
    endif()
  endforeach()
endfunction()

# cairn_marker(OUT FILE KEY): the value of a comment line `// KEY` or `// KEY: value` (`#` in scripts) among the first lines of
# FILE; TRUE where it has no value, empty where there is no such line.
function(cairn_marker out file key)
  set(${out} "" PARENT_SCOPE)
  file(STRINGS "${file}" lines LIMIT_COUNT 12)
  foreach(line IN LISTS lines)
    if(line MATCHES "^(//|#) ${key} *$")
      set(${out} TRUE PARENT_SCOPE)
      return()
    elseif(line MATCHES "^(//|#) ${key}: *(.*[^ ]) *$")
      set(${out} "${CMAKE_MATCH_2}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
