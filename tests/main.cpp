// SPDX-License-Identifier: Apache-2.0
// The one place where doctest's main is compiled; every test program links it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <paths.hpp>
#include <stdexcept>
#include <string>

std::string cairn_test::source_dir() {
  const char* chosen = std::getenv("CAIRN_SOURCE_DIR");
  return chosen != nullptr ? chosen : CAIRN_TEST_SOURCE_DIR;
}

std::string cairn_test::python() {
  const char* chosen = std::getenv("CAIRN_PYTHON");
  return chosen != nullptr ? chosen : CAIRN_TEST_PYTHON;
}

std::string cairn_test::program(const std::string& name) {
  std::array<char, 4096> buffer{};
  const ssize_t length = ::readlink("/proc/self/exe", buffer.data(), buffer.size());
  if (length > 0) {
    const std::string self(buffer.data(), static_cast<std::size_t>(length));
    const std::string folder = self.substr(0, self.rfind('/'));
    for (const std::string& path : {folder + "/" + name, folder + "/../examples/" + name}) {
      if (::access(path.c_str(), X_OK) == 0) return path;
    }
  }
  throw std::runtime_error("there is no program " + name +
                           " beside this test; name it in a line `// needs: " + name + "`");
}

/// Test programs that start themselves again in other roles define it.
void cairn_test_before_main(int argc, char** argv) __attribute__((weak));

int main(int argc, char** argv) {
  if (cairn_test_before_main != nullptr) cairn_test_before_main(argc, argv);
  return doctest::Context(argc, argv).run();
}
