# SPDX-License-Identifier: Apache-2.0
# conan create packaging/conan: cairn from the clone that this recipe lies in, for Conan 2.
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain
from conan.tools.files import copy, load

# What each component of find_package(cairn) needs.
COMPONENTS = {
    "interprocess": ["boost/[>=1.74 <2]"],
    "links": ["openssl/[>=3 <4]"],
    "mpi": ["openmpi/[>=4.1 <5]"],
    "parity": ["isa-l/[>=2.30 <3]"],
    "s3": ["libcurl/[>=7.85 <9]", "openssl/[>=3 <4]", "expat/[>=2.4 <3]"],
    "zstd": ["zstd/[>=1.5 <2]"],
}


class Cairn(ConanFile):
    name = "cairn"
    license = "Apache-2.0"
    description = "Header-only C++20 library for distributed, asynchronous training checkpoints"
    package_type = "static-library"  # with the option compiled; without it there are headers alone, see package_id
    settings = "os", "arch", "compiler", "build_type"
    options = {option: [True, False] for option in [*COMPONENTS, "compiled"]}
    default_options = {option: False for option in options}
    no_copy_source = True

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "include", "cairn", "version.hpp"))
        self.version = ".".join(re.search(rf"CAIRN_VERSION_{part} ([0-9]+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*"):
            copy(self, pattern, root, self.export_sources_folder)

    def requirements(self):
        # A consumer links and includes them: the headers are all of cairn.
        needs = [n for c in COMPONENTS if self.options.get_safe(c) for n in COMPONENTS[c]]
        # Conan refuses what is asked for twice: two components may need the same library.
        for needed in dict.fromkeys(["xxhash/[>=0.8 <1]", "rapidjson/cci.20230929", *needs]):
            self.requires(needed, transitive_headers=True, transitive_libs=True)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("cairn runs on Linux only")
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["CAIRN_INSTALL"] = True
        toolchain.cache_variables["CAIRN_BUILD_COMPILED"] = bool(self.options.compiled)
        for component in ("interprocess", "mpi", "zstd", "parity", "s3", "links", "cuda", "nccl", "torch"):
            # Headers need nothing here: what they need is found when a project asks for it.
            built = self.options.compiled and self.options.get_safe(component)
            toolchain.cache_variables[f"CAIRN_WITH_{component.upper()}"] = "ON" if built else "OFF"
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        if self.options.compiled:
            cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        if not self.info.options.compiled:
            self.info.clear()

    def package_info(self):
        # cairn's own package is what find_package(cairn) reads: it knows the components.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "cairn")]
        self.cpp_info.libdirs = []
        self.cpp_info.bindirs = []
