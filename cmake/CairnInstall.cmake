# SPDX-License-Identifier: Apache-2.0
# Installs the headers and the package that find_package(cairn) reads.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(cairn_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/cairn")
set(cairn_generated_dir "${CMAKE_CURRENT_BINARY_DIR}/package")

install(TARGETS cairn cairn_contracts EXPORT cairnTargets FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT cairnTargets NAMESPACE cairn:: DESTINATION "${cairn_package_dir}")

# Each library has an export of its own: what it links must be there before CMake reads it.
set(cairn_for_any_machine ARCH_INDEPENDENT)
if(CAIRN_BUILD_COMPILED)
  set(cairn_for_any_machine "")
  foreach(name IN LISTS cairn_compiled_here)
    install(TARGETS cairn_${name} EXPORT cairn_${name} ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    install(EXPORT cairn_${name} NAMESPACE cairn:: DESTINATION "${cairn_package_dir}")
  endforeach()
endif()

configure_package_config_file("${CMAKE_CURRENT_SOURCE_DIR}/cmake/cairnConfig.cmake.in"
  "${cairn_generated_dir}/cairnConfig.cmake" INSTALL_DESTINATION "${cairn_package_dir}")
# Below 1.0 a minor version may break its users.
write_basic_package_version_file("${cairn_generated_dir}/cairnConfigVersion.cmake"
  VERSION "${PROJECT_VERSION}" COMPATIBILITY SameMinorVersion ${cairn_for_any_machine})

install(FILES
  "${cairn_generated_dir}/cairnConfig.cmake"
  "${cairn_generated_dir}/cairnConfigVersion.cmake"
  "${CMAKE_CURRENT_SOURCE_DIR}/cmake/CairnCompiler.cmake"
  "${CMAKE_CURRENT_SOURCE_DIR}/cmake/CairnOptional.cmake"
  "${CMAKE_CURRENT_SOURCE_DIR}/cmake/FindCairnXxHash.cmake"
  "${CMAKE_CURRENT_SOURCE_DIR}/cmake/FindCairnRapidJSON.cmake"
  DESTINATION "${cairn_package_dir}")
install(FILES "${CMAKE_CURRENT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/cairn")
