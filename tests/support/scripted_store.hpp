// SPDX-License-Identifier: Apache-2.0
#pragma once
// A Portable store over files, which does in the worker what a script says: die, or wait, at a named call.
#include <cairn/stores/file_store.hpp>

#include "faulty_store.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn_test {

/// The script is the file `script` in a directory of the test: `<call> <before|after> <part of the key>
/// <kill|hold>`; it is carried out once. `hold`: opens the fifo `held`, so that the test knows, and then
/// waits at the fifo `go`.
class scripted_store : public faulty_store<cairn::file_store> {
  using base = faulty_store<cairn::file_store>;

 public:
  using cairn_role = cairn::role::store;

  scripted_store(const cairn::file_store& files, std::string scripts, bool obeys = false)
      : base(files, watch(obeys ? scripts : std::string())), files_(files), scripts_(std::move(scripts)) {}

  [[nodiscard]] std::vector<std::byte> description() const {
    cairn::wire_writer out;
    out.put(scripts_).raw(files_.description());
    return out.take();
  }
  [[nodiscard]] static scripted_store from_description(std::span<const std::byte> bytes) {
    cairn::wire_reader in(bytes);
    auto scripts = in.get_string();
    return {cairn::file_store::from_description(in.take(in.left())), std::move(scripts), true};
  }

  static void write(const std::string& scripts, const std::string& line) {
    for (const char* name : {"/held", "/go"}) {
      ::unlink((scripts + name).c_str());
      if (::mkfifo((scripts + name).c_str(), 0600) != 0) throw std::runtime_error("no fifo");
    }
    std::ofstream(scripts + "/new") << line;
    if (::rename((scripts + "/new").c_str(), (scripts + "/script").c_str()) != 0)
      throw std::runtime_error("no script");
  }
  /// Returns when the other end of the fifo is open.
  static void meet(const std::string& fifo, int way) {
    const int file = ::open(fifo.c_str(), way | O_CLOEXEC);
    if (file < 0) throw std::runtime_error("cannot open " + fifo);
    ::close(file);
  }
  static void wait_held(const std::string& scripts) { meet(scripts + "/held", O_RDONLY); }
  static void let_go(const std::string& scripts) { meet(scripts + "/go", O_WRONLY); }

 private:
  static std::shared_ptr<store_faults> watch(const std::string& scripts) {
    auto faults = std::make_shared<store_faults>();
    if (scripts.empty()) return faults;
    static constexpr std::pair<store_call, const char*> calls[] = {
        {store_call::create, "create"}, {store_call::write, "write"},
        {store_call::finish, "finish"}, {store_call::put_new, "put_new"},
        {store_call::read, "read"},     {store_call::size, "size"},
        {store_call::list, "list"},     {store_call::publish_new, "publish_new"}};
    for (const auto& [call, name] : calls)
      for (const bool after : {false, true})
        faults->add({.kind = call,
                     .after = after,
                     .for_ever = true,
                     .action = [scripts, call_name = std::string(name), after](std::string_view key) {
                       std::ifstream file(scripts + "/script");
                       std::string wanted, when, part, what;
                       if (!(file >> wanted >> when >> part >> what)) return;
                       if (wanted != call_name || (when == "after") != after ||
                           key.find(part) == std::string_view::npos)
                         return;
                       ::unlink((scripts + "/script").c_str());
                       if (what == "kill") ::kill(::getpid(), SIGKILL);
                       meet(scripts + "/held", O_WRONLY);
                       meet(scripts + "/go", O_RDONLY);
                     }});
    return faults;
  }

  cairn::file_store files_;
  std::string scripts_;
};

}  // namespace cairn_test
