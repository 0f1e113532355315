# SPDX-License-Identifier: Apache-2.0
# The targets of cairn's opt-in headers, in the source tree and for the consumers of an installed cairn:
#   cairn::interprocess   Boost.Interprocess: ranks as processes of one host
#   cairn::mpi            MPI
#   cairn::zstd           zstd
#   cairn::parity         ISA-L: parity of images on several hosts
#   cairn::s3             libcurl, OpenSSL's libcrypto and Expat: object storage
#   cairn::links          OpenSSL 3.0 or later: peer links and ranks over TLS
#   cairn::cuda           the CUDA toolkit's runtime: memory of GPUs
#   cairn::nccl           NCCL 2.19 or later, and the CUDA toolkit's runtime: messages from GPU to GPU
#   cairn::torch          libtorch, where Torch_DIR (a variable of CMake or of the environment) or CMAKE_PREFIX_PATH leads to it

set(cairn_optional_components interprocess mpi zstd parity s3 links cuda nccl torch)

# cairn_find_optional(COMPONENT): makes cairn::COMPONENT where what it needs is found; in cairn_optional_missing, a sentence where not.
macro(cairn_find_optional component)
  set(cairn_optional_missing "")
  if(NOT TARGET cairn::${component})
    set(cairn_targets_global "${CMAKE_FIND_PACKAGE_TARGETS_GLOBAL}")
    set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
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
    elseif("${component}" STREQUAL "parity")
      find_path(CAIRN_ISAL_INCLUDE_DIR isa-l.h)
      find_library(CAIRN_ISAL_LIBRARY isal)
      mark_as_advanced(CAIRN_ISAL_INCLUDE_DIR CAIRN_ISAL_LIBRARY)
      if(CAIRN_ISAL_INCLUDE_DIR AND CAIRN_ISAL_LIBRARY)
        if(NOT TARGET cairn::isal_library)
          add_library(cairn::isal_library UNKNOWN IMPORTED GLOBAL)
          set_target_properties(cairn::isal_library PROPERTIES
            IMPORTED_LOCATION "${CAIRN_ISAL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${CAIRN_ISAL_INCLUDE_DIR}")
        endif()
        set(cairn_optional_links cairn::isal_library)
      else()
        set(cairn_optional_missing "cairn::parity needs ISA-L (Debian and Ubuntu: apt-get install libisal-dev)")
      endif()
    elseif("${component}" STREQUAL "s3")
      find_package(CURL 7.85 QUIET)
      find_package(OpenSSL QUIET COMPONENTS Crypto)
      find_package(EXPAT QUIET)
      if(CURL_FOUND AND TARGET OpenSSL::Crypto AND EXPAT_FOUND)
        set(cairn_optional_links CURL::libcurl OpenSSL::Crypto EXPAT::EXPAT)
      else()
        set(cairn_optional_missing "cairn::s3 needs libcurl 7.85 or later, OpenSSL and Expat (Debian and Ubuntu: apt-get install libcurl4-openssl-dev libssl-dev libexpat1-dev)")
      endif()
    elseif("${component}" STREQUAL "links")
      find_package(OpenSSL 3.0 QUIET COMPONENTS SSL Crypto)
      if(TARGET OpenSSL::SSL AND TARGET OpenSSL::Crypto AND OPENSSL_VERSION VERSION_GREATER_EQUAL 3.0)
        set(cairn_optional_links OpenSSL::SSL OpenSSL::Crypto)
      else()
        set(cairn_optional_missing "cairn::links needs OpenSSL 3.0 or later (Debian and Ubuntu: apt-get install libssl-dev)")
      endif()
    elseif("${component}" STREQUAL "cuda")
      # The runtime alone: no compiler of device code is asked for.
      find_package(CUDAToolkit 12.0 QUIET)
      if(TARGET CUDA::cudart)
        set(cairn_optional_links CUDA::cudart)
      else()
        set(cairn_optional_missing "cairn::cuda needs the CUDA toolkit, 12.0 or later (https://developer.nvidia.com/cuda-toolkit)")
      endif()
    elseif("${component}" STREQUAL "nccl")
      find_package(CUDAToolkit 12.0 QUIET)
      find_path(CAIRN_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} "$ENV{NCCL_HOME}" PATH_SUFFIXES include)
      find_library(CAIRN_NCCL_LIBRARY nccl HINTS "${CUDAToolkit_LIBRARY_DIR}" "$ENV{NCCL_HOME}" PATH_SUFFIXES lib lib64)
      mark_as_advanced(CAIRN_NCCL_INCLUDE_DIR CAIRN_NCCL_LIBRARY)
      set(cairn_nccl_version "")
      if(CAIRN_NCCL_INCLUDE_DIR)
        file(STRINGS "${CAIRN_NCCL_INCLUDE_DIR}/nccl.h" cairn_nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR) +[0-9]+")
        string(REGEX REPLACE "[^0-9;]" "" cairn_nccl_version "${cairn_nccl_lines}")
        string(REPLACE ";" "." cairn_nccl_version "${cairn_nccl_version}")
      endif()
      if(TARGET CUDA::cudart AND CAIRN_NCCL_LIBRARY AND cairn_nccl_version VERSION_GREATER_EQUAL 2.19)
        if(NOT TARGET cairn::nccl_library)
          add_library(cairn::nccl_library UNKNOWN IMPORTED GLOBAL)
          set_target_properties(cairn::nccl_library PROPERTIES
            IMPORTED_LOCATION "${CAIRN_NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${CAIRN_NCCL_INCLUDE_DIR}")
        endif()
        set(cairn_optional_links cairn::nccl_library CUDA::cudart)
      else()
        set(cairn_optional_missing "cairn::nccl needs NCCL 2.19 or later (Debian and Ubuntu with NVIDIA's packages: apt-get install libnccl-dev; elsewhere set NCCL_HOME) and the CUDA toolkit, 12.0 or later")
      endif()
    elseif("${component}" STREQUAL "torch")
      # Not find_package(Torch): it changes CMAKE_CXX_FLAGS for everybody, and a CUDA build of it ends the configuration where no
      # CUDA toolkit is. What cairn calls is in libtorch_cpu and libc10; a program for GPUs links what TorchConfig gives as well.
      if(TARGET torch)
        set(cairn_optional_links torch)
      else()
        set(cairn_torch_roots "")
        foreach(directory IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
          if(directory)
            list(APPEND cairn_torch_roots "${directory}" "${directory}/../../..")
          endif()
        endforeach()
        find_path(CAIRN_TORCH_INCLUDE_DIR torch/csrc/api/include/torch/torch.h HINTS ${cairn_torch_roots} PATH_SUFFIXES include)
        find_library(CAIRN_TORCH_LIBRARY torch_cpu HINTS ${cairn_torch_roots} PATH_SUFFIXES lib)
        find_library(CAIRN_C10_LIBRARY c10 HINTS ${cairn_torch_roots} PATH_SUFFIXES lib)
        mark_as_advanced(CAIRN_TORCH_INCLUDE_DIR CAIRN_TORCH_LIBRARY CAIRN_C10_LIBRARY)
        if(CAIRN_TORCH_INCLUDE_DIR AND CAIRN_TORCH_LIBRARY AND CAIRN_C10_LIBRARY)
          if(NOT TARGET cairn::torch_library)
            add_library(cairn::c10_library UNKNOWN IMPORTED GLOBAL)
            set_target_properties(cairn::c10_library PROPERTIES IMPORTED_LOCATION "${CAIRN_C10_LIBRARY}")
            add_library(cairn::torch_library UNKNOWN IMPORTED GLOBAL)
            set_target_properties(cairn::torch_library PROPERTIES IMPORTED_LOCATION "${CAIRN_TORCH_LIBRARY}"
              INTERFACE_INCLUDE_DIRECTORIES "${CAIRN_TORCH_INCLUDE_DIR};${CAIRN_TORCH_INCLUDE_DIR}/torch/csrc/api/include"
              INTERFACE_LINK_LIBRARIES cairn::c10_library)
          endif()
          set(cairn_optional_links cairn::torch_library)
        else()
          set(cairn_optional_missing "cairn::torch needs libtorch (Debian: apt-get install libtorch-dev; pip's torch: -DTorch_DIR=.../site-packages/torch/share/cmake/Torch)")
        endif()
      endif()
    else()
      set(cairn_optional_missing "cairn has no component ${component}; there are: ${cairn_optional_components}")
    endif()
    set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL "${cairn_targets_global}")
    if(NOT cairn_optional_missing)
      add_library(cairn::${component} INTERFACE IMPORTED GLOBAL)
      set_target_properties(cairn::${component} PROPERTIES
        INTERFACE_LINK_LIBRARIES "cairn::cairn;${cairn_optional_links}"
        INTERFACE_COMPILE_DEFINITIONS "${cairn_optional_definitions}")
    endif()
  endif()
endmacro()

# cairn_add_worker_program(NAME): a program that serves process_executor{worker_program{path}} for trainers whose main() is not theirs,
# with the writer safetensors_writer<file_store>. Needs cairn::interprocess.
function(cairn_add_worker_program name)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT [[
#include <cairn/execute/worker_main.hpp>
#include <cairn/storage/safetensors_writer.hpp>
#include <cairn/stores/file_store.hpp>

int main(int argc, char** argv) {
  return cairn::worker_program_main<cairn::safetensors_writer<cairn::file_store>>(argc, argv);
}
]] @ONLY)
  add_executable(${name} "${source}")
  target_link_libraries(${name} PRIVATE cairn::interprocess)
endfunction()
