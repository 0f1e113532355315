# SPDX-License-Identifier: Apache-2.0
# The two other ways to take cairn than header-only:
#   cairn::compiled         a static library of the bodies of core; its users parse contracts alone
#   cairn::compiled_s3, _zstd, _parity, _interprocess, _mpi, _links    the same of what cairn::s3 ... bring, with cairn::compiled and cairn::s3
#   cairn::contracts        contracts alone; the bodies are in one file of the user's, which includes <cairn/implementation.hpp>
# Nothing of it is built unless something links it, or CAIRN_BUILD_COMPILED asks for it.

set(cairn_compiled_components s3 zstd parity interprocess mpi links)

add_library(cairn_contracts INTERFACE)
add_library(cairn::contracts ALIAS cairn_contracts)
set_target_properties(cairn_contracts PROPERTIES EXPORT_NAME contracts)
target_link_libraries(cairn_contracts INTERFACE cairn)
target_compile_definitions(cairn_contracts INTERFACE CAIRN_COMPILED=1)

# The bodies of each component: impl/F/x.ipp belongs to the component that the page F/x.hpp names in a line
# `// opt-in: cairn::...`, and to core where there is none. Core is two files: with one for each folder, what they all include
# takes twice the processor time; with one, a machine of two cores takes twice as long.
set(cairn_upper_folders storage stores manage checkpointer any_checkpointer interop)
file(GLOB_RECURSE cairn_bodies CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/include/cairn/impl/*.ipp")
foreach(path IN LISTS cairn_bodies)
  cmake_path(RELATIVE_PATH path BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/include/cairn/impl" OUTPUT_VARIABLE name)
  string(REGEX REPLACE "/.*|[.]ipp$" "" folder "${name}")
  if(folder IN_LIST cairn_upper_folders)
    set(part "upper")
  else()
    set(part "lower")
  endif()
  string(REGEX REPLACE "[.]ipp$" ".hpp" page "${name}")
  file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/include/cairn/${page}" component LIMIT_COUNT 4 REGEX "^// opt-in: cairn::")
  string(REGEX REPLACE "^// opt-in: cairn::" "" component "${component}")
  if(component STREQUAL "")
    set(component "core")
  else()
    set(part "all")
  endif()
  list(APPEND cairn_parts_of_${component} ${part})
  string(APPEND cairn_includes_of_${component}_${part} "#include <cairn/impl/${name}>\n")
endforeach()

# cairn_add_compiled(NAME COMPONENT): the library cairn::NAME with the bodies of COMPONENT.
function(cairn_add_compiled name component)
  set(sources "")
  if(NOT cairn_parts_of_${component})
    set(cairn_parts_of_${component} all)  # no library is without a file
  endif()
  list(REMOVE_DUPLICATES cairn_parts_of_${component})
  foreach(part IN LISTS cairn_parts_of_${component})
    # At the same place below each build, where cairn is a part of it, too: a compiler cache serves one from the other.
    set(source "${CMAKE_BINARY_DIR}/cairn_compiled/${component}_${part}.cpp")
    set(includes "${cairn_includes_of_${component}_${part}}")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#define CAIRN_IMPLEMENTATION\n@includes@" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  add_library(cairn_${name} STATIC ${sources})
  add_library(cairn::${name} ALIAS cairn_${name})
  set_target_properties(cairn_${name} PROPERTIES EXPORT_NAME ${name} CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON)  # for the extensions of Python and other shared libraries
  # Nobody replaces single functions of it: g++ may inline them in one another, as clang does anyway.
  target_compile_options(cairn_${name} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-fno-semantic-interposition>")
  if(NOT CAIRN_BUILD_COMPILED)
    set_target_properties(cairn_${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  endif()
endfunction()

cairn_add_compiled(compiled core)
target_link_libraries(cairn_compiled PUBLIC cairn)
target_compile_definitions(cairn_compiled PUBLIC CAIRN_COMPILED=1)

set(cairn_compiled_here "")
foreach(component IN LISTS cairn_compiled_components)
  if(TARGET cairn::${component})
    string(TOUPPER ${component} upper)
    cairn_add_compiled(compiled_${component} ${component})
    target_link_libraries(cairn_compiled_${component} PUBLIC cairn_compiled cairn::${component})
    target_compile_definitions(cairn_compiled_${component} PUBLIC CAIRN_COMPILED_${upper}=1)
    list(APPEND cairn_compiled_here compiled_${component})
  endif()
endforeach()
list(PREPEND cairn_compiled_here compiled)
