# SPDX-License-Identifier: Apache-2.0
# As curl's own build installs it: CURL::libcurl is a second name of another target. The library is the system's.
if(NOT TARGET CURL::libcurl)
  find_library(consumer_curl NAMES curl REQUIRED)
  add_library(CURL::libcurl_shared SHARED IMPORTED)
  set_target_properties(CURL::libcurl_shared PROPERTIES IMPORTED_LOCATION "${consumer_curl}")
  add_library(CURL::libcurl ALIAS CURL::libcurl_shared)
endif()
