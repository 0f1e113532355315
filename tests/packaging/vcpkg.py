#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the portfile of the vcpkg port with doubles of vcpkg's functions, and builds and runs a consumer of what it installs.

usage: vcpkg.py ROOT WORK CMAKE GENERATOR CXX [LAUNCHER]

vcpkg itself is not needed: the doubles do what its documentation says of them, as far as this port goes. The manifest is compared with
the tree: the version, the features with the components of find_package(cairn), the names of its fields.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

DOUBLES = r"""
cmake_minimum_required(VERSION 3.21)
set(CURRENT_PORT_DIR "@PORT@")
set(CURRENT_PACKAGES_DIR "@WORK@/package")
set(FEATURES @FEATURES@)
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "vcpkg_cmake_configure: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" -G "@GENERATOR@" -S "${arg_SOURCE_PATH}" -B "@WORK@/build" "-DCMAKE_CXX_COMPILER=@CXX@" "-DCMAKE_CXX_COMPILER_LAUNCHER=@LAUNCHER@"
    "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" ${arg_OPTIONS} RESULT_VARIABLE status ERROR_VARIABLE warnings)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "CMake could not configure: ${warnings}")
  endif()
  if(warnings MATCHES "Manually-specified variables were not used")
    message(FATAL_ERROR "the port gives options that cairn does not have: ${warnings}")
  endif()
endfunction()
function(vcpkg_cmake_install)
  if("compiled" IN_LIST FEATURES)
    execute_process(COMMAND "${CMAKE_COMMAND}" --build "@WORK@/build" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" --install "@WORK@/build" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/debug/include")
endfunction()
# Moves the package to share/NAME, and makes its files compute the prefix from there.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "PACKAGE_NAME;CONFIG_PATH" "")
  file(RENAME "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" "${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}")
  file(GLOB files "${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}/*.cmake")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    string(REGEX REPLACE "get_filename_component\\(_IMPORT_PREFIX[^\n]*\n" "" text "${text}")
    string(REPLACE "# Use original install prefix" "#" text "${text}")
    string(REGEX REPLACE "(# Compute the installation prefix relative to this file.\n)"
      "\\1get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_DIR}/../..\" ABSOLUTE)\n" text "${text}")
    string(REGEX REPLACE "get_filename_component\\(PACKAGE_PREFIX_DIR [^\n]*" 
      "get_filename_component(PACKAGE_PREFIX_DIR \"\${CMAKE_CURRENT_LIST_DIR}/../../\" ABSOLUTE)" text "${text}")
    file(WRITE "${file}" "${text}")
  endforeach()
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  foreach(file IN LISTS arg_FILE_LIST)
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "there is no ${file}")
    endif()
  endforeach()
endfunction()
include("@PORT@/portfile.cmake")
"""


def run(*command):
    subprocess.run([str(c) for c in command], check=True)


def check_manifest(root, port):
    manifest = json.loads((port / "vcpkg.json").read_text(encoding="utf-8"))
    version = (root / "include/cairn/version.hpp").read_text(encoding="utf-8")
    parts = [re.search(rf"CAIRN_VERSION_{part} ([0-9]+)", version).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
    assert manifest["version"] == ".".join(parts), f"vcpkg.json has version {manifest['version']}, the headers {'.'.join(parts)}"
    assert manifest["name"] == port.name, "the port's folder has another name"
    optional = (root / "cmake/CairnOptional.cmake").read_text(encoding="utf-8")
    components = re.search(r"set\(cairn_optional_components ([^)]*)\)", optional).group(1).split()
    for feature in manifest["features"]:
        assert feature in [*components, "compiled"], f"vcpkg.json has the feature {feature}, of which find_package(cairn) knows nothing"
    for fields in [manifest, *manifest["features"].values()]:
        assert fields["description"] and fields.get("dependencies", []) == sorted(
            fields.get("dependencies", []), key=lambda d: d if isinstance(d, str) else d["name"]), "vcpkg wants sorted dependencies"


def consume(root, work, features, cmake, generator, cxx, launcher):
    """Installs the port with these features, and builds and runs the consumer of it."""
    work.mkdir(parents=True)
    script = DOUBLES
    for name, value in {"PORT": root / "packaging/vcpkg/cairn", "WORK": work, "GENERATOR": generator, "CXX": cxx, "LAUNCHER": launcher,
                        "FEATURES": ";".join(features)}.items():
        script = script.replace(f"@{name}@", str(value))
    (work / "port.cmake").write_text(script, encoding="utf-8")
    run(cmake, "-P", work / "port.cmake")
    installed = sorted(str(p.relative_to(work / "package")) for p in (work / "package").rglob("*") if p.is_file())
    libraries = [p for p in installed if p.endswith(".a")]
    assert all(p.startswith(("include/cairn/", "share/cairn/")) for p in installed if p not in libraries), installed
    assert len(libraries) == len(features), libraries
    run(cmake, "-G", generator, "-S", root / "packaging/conan/test_package", "-B", work / "consumer", "-DCMAKE_BUILD_TYPE=Debug",
        f"-DCMAKE_CXX_COMPILER={cxx}", f"-DCMAKE_PREFIX_PATH={work / 'package'}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}",
        f"-DCOMPILED={'ON' if features else 'OFF'}")
    run(cmake, "--build", work / "consumer")
    run(work / "consumer/consumer", work / "checkpoints")


def main(root, work, cmake, generator, cxx, launcher=""):
    root, work = pathlib.Path(root).resolve(), pathlib.Path(work).resolve()
    port = root / "packaging/vcpkg/cairn"
    check_manifest(root, port)
    shutil.rmtree(work, ignore_errors=True)
    for features in ([], ["compiled", "interprocess"]):
        consume(root, work / ("_".join(features) or "headers"), features, cmake, generator, cxx, launcher)
    print("the port installs what its consumer needs")


if __name__ == "__main__":
    if len(sys.argv) not in (6, 7):
        sys.exit(__doc__)
    main(*sys.argv[1:])
