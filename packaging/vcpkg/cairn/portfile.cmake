# SPDX-License-Identifier: Apache-2.0
# As an overlay the port builds the clone that it lies in; a registry names a release in place of the next line.
set(SOURCE_PATH "${CURRENT_PORT_DIR}/../../..")

# Header-only, the components need nothing at build time: cairn's package finds what they need when a project asks for them. The
# feature `compiled` has the bodies of those that are features, too, in static libraries.
set(options -DCAIRN_INSTALL=ON -DCAIRN_WITH_CUDA=OFF -DCAIRN_WITH_NCCL=OFF -DCAIRN_WITH_TORCH=OFF)
foreach(component IN ITEMS interprocess mpi zstd parity s3 links)
  string(TOUPPER "CAIRN_WITH_${component}" option)
  if("compiled" IN_LIST FEATURES AND component IN_LIST FEATURES)
    list(APPEND options -D${option}=ON)
  else()
    list(APPEND options -D${option}=OFF)
  endif()
endforeach()
if("compiled" IN_LIST FEATURES)
  list(APPEND options -DCAIRN_BUILD_COMPILED=ON)
endif()

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS ${options})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME cairn CONFIG_PATH share/cmake/cairn)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share" "${CURRENT_PACKAGES_DIR}/share/cmake"
  "${CURRENT_PACKAGES_DIR}/share/doc")
if(NOT "compiled" IN_LIST FEATURES)
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug")
endif()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
