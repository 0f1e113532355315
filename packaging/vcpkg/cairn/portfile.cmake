# SPDX-License-Identifier: Apache-2.0
# As an overlay the port builds the clone that it lies in; a registry names a release in place of the next line.
set(SOURCE_PATH "${CURRENT_PORT_DIR}/../../..")

# The components need nothing at build time: cairn's package finds what they need when a project asks for them.
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS
  -DCAIRN_INSTALL=ON
  -DCAIRN_WITH_INTERPROCESS=OFF -DCAIRN_WITH_MPI=OFF -DCAIRN_WITH_ZSTD=OFF -DCAIRN_WITH_S3=OFF
  -DCAIRN_WITH_CUDA=OFF -DCAIRN_WITH_NCCL=OFF -DCAIRN_WITH_TORCH=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME cairn CONFIG_PATH share/cmake/cairn)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug" "${CURRENT_PACKAGES_DIR}/share/cmake" "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
