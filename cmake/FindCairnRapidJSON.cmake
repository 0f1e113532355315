# SPDX-License-Identifier: Apache-2.0
#
# Finds the headers of RapidJSON and makes the imported target cairn::rapidjson (its headers count as system headers).
# Hint: CMAKE_PREFIX_PATH. Installed with cairn, for its consumers.

find_path(CairnRapidJSON_INCLUDE_DIR NAMES rapidjson/reader.h)
mark_as_advanced(CairnRapidJSON_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CairnRapidJSON
  REQUIRED_VARS CairnRapidJSON_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install the headers of RapidJSON (Debian and Ubuntu: apt-get install rapidjson-dev) \
or add their prefix to CMAKE_PREFIX_PATH")

if(CairnRapidJSON_FOUND AND NOT TARGET cairn::rapidjson)
  add_library(cairn::rapidjson INTERFACE IMPORTED GLOBAL)
  set_target_properties(cairn::rapidjson PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${CairnRapidJSON_INCLUDE_DIR}")
endif()
