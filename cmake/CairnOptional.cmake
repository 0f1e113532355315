# SPDX-License-Identifier: Apache-2.0
# The targets of cairn's opt-in headers, in the source tree and for the consumers of an installed cairn:
#   cairn::interprocess   Boost.Interprocess: ranks as processes of one host
#   cairn::mpi            MPI
#   cairn::zstd           zstd
#   cairn::torch          libtorch, where Torch_DIR or CMAKE_PREFIX_PATH leads to it

set(cairn_optional_components interprocess mpi zstd torch)

# cairn_find_optional(COMPONENT): makes cairn::COMPONENT where what it needs is found; in cairn_optional_missing, a sentence where not.
macro(cairn_find_optional component)
  set(cairn_optional_missing "")
  if(NOT TARGET cairn::${component})
    set(cairn_optional_links "")
    set(cairn_optional_definitions "")
    if("${component}" STREQUAL "interprocess")
      find_path(CAIRN_BOOST_INCLUDE_DIR boost/interprocess/mapped_region.hpp)
      mark_as_advanced(CAIRN_BOOST_INCLUDE_DIR)
      if(CAIRN_BOOST_INCLUDE_DIR)
        if(NOT TARGET cairn::boost_headers)
          add_library(cairn::boost_headers INTERFACE IMPORTED GLOBAL)
          set_target_properties(cairn::boost_headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${CAIRN_BOOST_INCLUDE_DIR}")
        endif()
        set(cairn_optional_links cairn::boost_headers)
      else()
        set(cairn_optional_missing "cairn::interprocess needs Boost's headers (Debian and Ubuntu: apt-get install libboost-dev)")
      endif()
    elseif("${component}" STREQUAL "mpi")
      # The C interface is all that is used; the C++ bindings are gone from MPI since 2012.
      set(MPI_CXX_SKIP_MPICXX TRUE)
      find_package(MPI QUIET COMPONENTS CXX)
      if(MPI_CXX_FOUND)
        set_property(TARGET MPI::MPI_CXX PROPERTY IMPORTED_GLOBAL TRUE)
        set(cairn_optional_links MPI::MPI_CXX)
        set(cairn_optional_definitions OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
      else()
        set(cairn_optional_missing "cairn::mpi needs MPI (Debian and Ubuntu: apt-get install libopenmpi-dev openmpi-bin)")
      endif()
    elseif("${component}" STREQUAL "zstd")
      find_path(CAIRN_ZSTD_INCLUDE_DIR zstd.h)
      find_library(CAIRN_ZSTD_LIBRARY zstd)
      mark_as_advanced(CAIRN_ZSTD_INCLUDE_DIR CAIRN_ZSTD_LIBRARY)
      if(CAIRN_ZSTD_INCLUDE_DIR AND CAIRN_ZSTD_LIBRARY)
        if(NOT TARGET cairn::zstd_library)
          add_library(cairn::zstd_library UNKNOWN IMPORTED GLOBAL)
          set_target_properties(cairn::zstd_library PROPERTIES
            IMPORTED_LOCATION "${CAIRN_ZSTD_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${CAIRN_ZSTD_INCLUDE_DIR}")
        endif()
        set(cairn_optional_links cairn::zstd_library)
      else()
        set(cairn_optional_missing "cairn::zstd needs zstd (Debian and Ubuntu: apt-get install libzstd-dev)")
      endif()
    elseif("${component}" STREQUAL "torch")
      set(cairn_flags_before "${CMAKE_CXX_FLAGS}")
      find_package(Torch QUIET)
      set(CMAKE_CXX_FLAGS "${cairn_flags_before}")  # Torch's package adds its own to everybody's
      if(Torch_FOUND)
        set(cairn_optional_links torch)
      else()
        set(cairn_optional_missing "cairn::torch needs libtorch (Debian: apt-get install libtorch-dev; or set Torch_DIR)")
      endif()
    else()
      set(cairn_optional_missing "cairn has no component ${component}; there are: ${cairn_optional_components}")
    endif()
    if(NOT cairn_optional_missing)
      add_library(cairn::${component} INTERFACE IMPORTED GLOBAL)
      set_target_properties(cairn::${component} PROPERTIES
        INTERFACE_LINK_LIBRARIES "cairn::cairn;${cairn_optional_links}"
        INTERFACE_COMPILE_DEFINITIONS "${cairn_optional_definitions}")
    endif()
  endif()
endmacro()
