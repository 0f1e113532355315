# SPDX-License-Identifier: Apache-2.0
#
# Finds libxxhash (0.8 or newer, for the stable XXH3) and makes the imported target cairn::xxhash.
# Hints: CMAKE_PREFIX_PATH, or pkg-config's libxxhash.pc. Installed with cairn, for its consumers.

find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(CairnXxHash_PC QUIET libxxhash)
endif()

find_path(CairnXxHash_INCLUDE_DIR NAMES xxhash.h HINTS ${CairnXxHash_PC_INCLUDE_DIRS} ${CairnXxHash_PC_INCLUDEDIR})
find_library(CairnXxHash_LIBRARY NAMES xxhash HINTS ${CairnXxHash_PC_LIBRARY_DIRS} ${CairnXxHash_PC_LIBDIR})
mark_as_advanced(CairnXxHash_INCLUDE_DIR CairnXxHash_LIBRARY)

set(CairnXxHash_VERSION "")
if(CairnXxHash_INCLUDE_DIR)
  foreach(part IN ITEMS MAJOR MINOR RELEASE)
    file(STRINGS "${CairnXxHash_INCLUDE_DIR}/xxhash.h" line REGEX "^#define XXH_VERSION_${part} +[0-9]+")
    string(REGEX REPLACE ".*XXH_VERSION_${part} +([0-9]+).*" "\\1" number "${line}")
    list(APPEND CairnXxHash_VERSION "${number}")
  endforeach()
  list(JOIN CairnXxHash_VERSION "." CairnXxHash_VERSION)
endif()

include(FindPackageHandleStandardArgs)
set(CairnXxHash_reason "")
if(CairnXxHash_VERSION AND CairnXxHash_VERSION VERSION_LESS 0.8)
  set(CairnXxHash_LIBRARY "CairnXxHash_LIBRARY-NOTFOUND")
  set(CairnXxHash_reason "version ${CairnXxHash_VERSION} is older than 0.8; ")
endif()
find_package_handle_standard_args(CairnXxHash
  REQUIRED_VARS CairnXxHash_LIBRARY CairnXxHash_INCLUDE_DIR
  VERSION_VAR CairnXxHash_VERSION
  REASON_FAILURE_MESSAGE "${CairnXxHash_reason}install libxxhash 0.8 or newer (Debian and Ubuntu: apt-get install libxxhash-dev) \
or add its prefix to CMAKE_PREFIX_PATH")

if(CairnXxHash_FOUND AND NOT TARGET cairn::xxhash)
  add_library(cairn::xxhash UNKNOWN IMPORTED GLOBAL)
  set_target_properties(cairn::xxhash PROPERTIES
    IMPORTED_LOCATION "${CairnXxHash_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CairnXxHash_INCLUDE_DIR}")
endif()
