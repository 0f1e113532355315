# SPDX-License-Identifier: Apache-2.0
# What cairn's own tests, examples and benchmarks share; users of the library never see it.

add_library(cairn_warnings INTERFACE)
target_compile_options(cairn_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
  $<$<BOOL:${CAIRN_WERROR}>:-Werror>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fconcepts-diagnostics-depth=4>)

# g++ looks for memory to use again each time it has 128 MiB: a tenth of the time of what takes it long. Where there are 4 GiB
# for each core, it may use 1 GiB before it looks.
cmake_host_system_information(RESULT cairn_memory QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT cairn_cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR cairn_memory_of_core "${cairn_memory} / ${cairn_cores}")
if(cairn_memory_of_core GREATER_EQUAL 4000)
  target_compile_options(cairn_warnings INTERFACE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>")
endif()

# Relative to where compilers run: the compiler cache takes the option as it is, for every clone.
set(cairn_profiled "")
if(CMAKE_CXX_FLAGS MATCHES "-fprofile-instr-generate")
  file(RELATIVE_PATH cairn_profiled "${CMAKE_BINARY_DIR}" "${CMAKE_CURRENT_LIST_DIR}/profiled.txt")
  set(cairn_profiled "-fprofile-list=${cairn_profiled}")
  target_compile_options(cairn_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cairn_profiled}>")
endif()

# Where programs are not optimised, as that compiles fastest, this optimises what most of their time goes into. S3,
# worker processes and links mostly wait: to optimise them takes longer than it saves their tests.
set(CAIRN_COMPILED_OPTIONS "" CACHE STRING "Further options of the compiler for cairn::compiled, compiled_zstd and compiled_parity")
separate_arguments(cairn_compiled_options UNIX_COMMAND "${CAIRN_COMPILED_OPTIONS}")
foreach(name IN LISTS cairn_compiled_here)
  target_link_libraries(cairn_${name} PRIVATE $<BUILD_INTERFACE:cairn_warnings>)
  if(name MATCHES "^compiled(_zstd|_parity)?$")
    target_compile_options(cairn_${name} PRIVATE ${cairn_compiled_options})
  endif()
endforeach()

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
    foreach(name IN LISTS cairn_compiled_here)  # made before
      set_target_properties(cairn_${name} PROPERTIES CXX_COMPILER_LAUNCHER "${CAIRN_CCACHE}")
    endforeach()
  endif()
endif()

# `cmake --build build/PRESET --target docs`: the API reference and the pages, in build/PRESET/docs/html.
find_program(CAIRN_DOXYGEN doxygen)
mark_as_advanced(CAIRN_DOXYGEN)
set(cairn_docs_folder "${PROJECT_BINARY_DIR}/docs")
file(GLOB cairn_docs_pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/*.md" "${PROJECT_SOURCE_DIR}/docs/*.md")
list(JOIN cairn_docs_pages " " cairn_docs_pages)
set(cairn_docs_html YES)
set(cairn_docs_xml NO)
configure_file("${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in" "${cairn_docs_folder}/Doxyfile" @ONLY)
if(CAIRN_DOXYGEN AND PROJECT_IS_TOP_LEVEL)
  add_custom_target(docs
    COMMAND "${CAIRN_DOXYGEN}" "${cairn_docs_folder}/Doxyfile"
    COMMAND "${CMAKE_COMMAND}" -E copy_directory "${PROJECT_SOURCE_DIR}/docs" "${cairn_docs_folder}/html/docs"
    COMMAND "${CMAKE_COMMAND}" -E echo "the reference is in ${cairn_docs_folder}/html/index.html"
    VERBATIM)
endif()
# What the test docs.reference reads.
set(cairn_docs_pages "")
set(cairn_docs_html NO)
set(cairn_docs_xml YES)
configure_file("${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in" "${cairn_docs_folder}/Doxyfile.xml" @ONLY)

# Links a program in a quarter of the time, and no cache keeps what is linked.
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  include(CheckLinkerFlag)
  check_linker_flag(CXX "-fuse-ld=lld" CAIRN_LLD_LINKS)
  if(CAIRN_LLD_LINKS)
    add_link_options("$<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>")
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

# Precompiled headers with object files of their own: the programs neither parse cairn's headers nor compile its inline
# functions and usual compositions again, which is most of the work of building them without optimisation. That they need no
# such thing is shown by the builds with g++, the consumers and the tests headers.*. With CAIRN_COMPILED_PROGRAMS, these headers
# are contracts alone.
option(CAIRN_PRECOMPILE "Compile what tests, examples and benchmarks have in common once for all of them (clang only)" OFF)
if(CAIRN_PRECOMPILE AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(WARNING "CAIRN_PRECOMPILE is ignored: it needs clang, and the compiler is ${CMAKE_CXX_COMPILER_ID}")
  set(CAIRN_PRECOMPILE OFF)
endif()

# With any compiler: programs link cairn::compiled, and parse contracts alone.
option(CAIRN_COMPILED_PROGRAMS "Link tests and examples with cairn::compiled" OFF)

# cairn_precompiled(NAME [AFTER BASE] [LINKS TARGET...] [OPTIONS OPTION...]): the target NAME gives cmake/NAME.hpp to the programs
# that link it, which have these options as well; AFTER another one, what that has is not compiled again.
function(cairn_precompiled name)
  cmake_parse_arguments(PARSE_ARGV 1 pch "" "AFTER" "LINKS;OPTIONS")
  set(path "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  file(CONFIGURE OUTPUT "${path}.cpp" CONTENT "#include <@name@.hpp>\n" @ONLY)
  add_library(${name}_header OBJECT "${path}.cpp")
  target_include_directories(${name}_header PRIVATE "${PROJECT_SOURCE_DIR}/cmake")
  target_link_libraries(${name}_header PRIVATE cairn::cairn cairn_warnings ${pch_AFTER} ${pch_LINKS})
  target_compile_options(${name}_header PRIVATE ${pch_OPTIONS} -fpch-instantiate-templates -fpch-codegen
    "SHELL:-Xclang -fno-pch-timestamp" "SHELL:-x c++-header")  # the same file in each build of the same headers: for ccache
  set_target_properties(${name}_header PROPERTIES CXX_EXTENSIONS OFF CXX_COMPILER_LAUNCHER "")
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}}")
  add_custom_command(OUTPUT "${path}.pch"
    COMMAND "${CMAKE_COMMAND}" -E create_symlink "$<TARGET_OBJECTS:${name}_header>" "${path}.pch"
    DEPENDS "$<TARGET_OBJECTS:${name}_header>" VERBATIM)
  add_custom_command(OUTPUT "${path}.o"
    COMMAND "${CMAKE_CXX_COMPILER}" ${flags} ${cairn_profiled} ${pch_OPTIONS} -std=c++20 -Wno-unused-command-line-argument -fpch-codegen -c "${path}.pch" -o "${path}.o"
    DEPENDS "${path}.pch" "$<TARGET_OBJECTS:${name}_header>" WORKING_DIRECTORY "${CMAKE_BINARY_DIR}" VERBATIM)
  add_custom_target(${name}_pch DEPENDS "${path}.pch")
  add_custom_target(${name}_object DEPENDS "${path}.o")
  add_library(${name} INTERFACE)
  target_compile_options(${name} INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include-pch \"${path}.pch\">")
  target_link_libraries(${name} INTERFACE "${path}.o" ${pch_LINKS})
  if(pch_AFTER)
    target_link_libraries(${name} INTERFACE "${CMAKE_CURRENT_BINARY_DIR}/${pch_AFTER}.o")
  endif()
  add_dependencies(${name} ${name}_pch)  # linking waits for the file by itself
endfunction()

if(CAIRN_PRECOMPILE)
  set(compiled "")
  set(compiled_s3 "")
  if(CAIRN_COMPILED_PROGRAMS)
    set(compiled cairn::compiled)
    set(compiled_s3 cairn::compiled_s3 cairn::compiled_zstd)
  endif()
  cairn_precompiled(cairn_common LINKS ${compiled})
  if(TARGET cairn::s3 AND TARGET cairn::zstd)
    cairn_precompiled(cairn_common_s3 AFTER cairn_common LINKS cairn::s3 cairn::zstd ${compiled_s3})
  endif()
endif()

# cairn_program(NAME [ALONE] FILE...): one executable with cairn's warnings. ALONE: it is header-only whatever the others are, and
# never gets the precompiled header, for it has flags of its own, or is there to parse the headers.
function(cairn_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "ALONE" "" "")
  add_executable(${name} ${program_UNPARSED_ARGUMENTS})
  if(CAIRN_COMPILED_PROGRAMS AND NOT program_ALONE)
    target_link_libraries(${name} PRIVATE cairn::compiled)
  endif()
  target_link_libraries(${name} PRIVATE cairn::cairn cairn_warnings)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  if(CAIRN_PRECOMPILE AND NOT program_ALONE)
    target_link_libraries(${name} PRIVATE cairn_common)
  endif()
endfunction()

# cairn_use_common_s3(NAME): the program gets the larger precompiled header in place of the usual one, if it has that.
function(cairn_use_common_s3 name)
  get_target_property(libraries ${name} LINK_LIBRARIES)
  if("cairn_common" IN_LIST libraries)
    list(REMOVE_ITEM libraries cairn_common)
    set_target_properties(${name} PROPERTIES LINK_LIBRARIES "${libraries};cairn_common_s3")
    # The larger file may stay the same where the smaller one, which it needs, changes: the cache has to look at both.
    if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache$")
      set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND};-E;env;CCACHE_EXTRAFILES=${PROJECT_BINARY_DIR}/cairn_common.pch;${CMAKE_CXX_COMPILER_LAUNCHER}")
    endif()
  endif()
endfunction()

# cairn_link_optional(NAME SOURCE): links the optional targets that the marker lines of SOURCE name to the program NAME:
#   // links: cairn::mpi   needed: see cairn_can_link
#   // uses: cairn::mpi    where it is there; CAIRN_USES_MPI is 1 then
function(cairn_link_optional name source)
  cairn_marker(links ${source} links)
  cairn_marker(uses ${source} uses)
  separate_arguments(links UNIX_COMMAND "${links}")
  separate_arguments(uses UNIX_COMMAND "${uses}")
  if(TARGET cairn_common_s3 AND ("cairn::s3" IN_LIST links OR "cairn::s3" IN_LIST uses))
    cairn_use_common_s3(${name})
  endif()
  get_target_property(libraries ${name} LINK_LIBRARIES)
  foreach(target IN LISTS links uses)
    string(REPLACE "cairn::" "cairn::compiled_" compiled "${target}")
    if("cairn::compiled" IN_LIST libraries AND TARGET ${compiled})
      target_link_libraries(${name} PRIVATE ${compiled})
    endif()
  endforeach()
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
