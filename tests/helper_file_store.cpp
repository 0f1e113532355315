// SPDX-License-Identifier: Apache-2.0
// One client of a directory, for tests in which clients on several hosts take turns: reads commands from its
// standard input, one a line, and answers each with a line.
//   helper_file_store DIRECTORY
//     size KEY | read KEY | keys PREFIX | list PREFIX     what is there; "none" where there is nothing
//     put KEY TEXT | publish KEY TEXT                     "done", or "exists"
//     remove KEY | remove_if KEY TEXT | discard KEY       "done", or "kept"
//     create KEY | finish | close                         an object writer that is held until close
//     leftovers PREFIX | live PREFIX | lives KEY          whose writers are dead, or live
//     test                                                the worst that self_test() found
//     save STEP | load STEP                               a checkpoint, of which two stay; the number that it holds
//     steps | delete STEP                                 those that are there; "done", or "leased"
//     hold STEP | release                                 a lease: "held", or "gone"
// An error is answered as "error ID: MESSAGE".
#include <cairn/any_checkpointer.hpp>
#include <cairn/checkpointer.hpp>
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/file_store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

template <class Keys>
std::string joined(const Keys& keys) {
  std::string out;
  for (const auto& key : keys) out += (out.empty() ? "" : " ") + key;
  return out.empty() ? "none" : out;
}

class client {
 public:
  explicit client(const std::string& directory) : store_(directory) { state_.value("number", number_); }

  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    std::string key;
    std::string text;
    words >> what >> key >> text;
    if (what == "size") {
      const auto n = store_.size(key);
      return n ? std::to_string(*n) : "none";
    }
    if (what == "read") {
      const auto bytes = store_.read_all(key, 1u << 20);
      if (!bytes) return "none";
      return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
    }
    if (what == "keys") return joined(store_.keys(key, 64));
    if (what == "list") {
      std::vector<std::string> found;
      for (const auto& object : store_.list(key))
        found.push_back(object.key + "=" + std::to_string(object.bytes));
      return joined(found);
    }
    if (what == "put") return store_.put_new(key, bytes_of(text)), "done";
    if (what == "publish") return store_.publish_new(key, bytes_of(text)) ? "done" : "exists";
    if (what == "remove") return store_.remove(key), "done";
    if (what == "remove_if") return store_.remove_if(key, bytes_of(text)) ? "done" : "kept";
    if (what == "discard") return store_.discard(key), "done";
    if (what == "create") return writer_.emplace(store_.create(key, 0)), "done";
    if (what == "finish") return writer_.value().finish(), "done";
    if (what == "close") return writer_.reset(), "done";
    if (what == "leftovers") return joined(store_.leftovers(key));
    if (what == "live") return joined(store_.live_writers(key));
    if (what == "lives") return store_.writer_lives(key) ? "yes" : "no";
    if (what == "test") {
      const auto report = store_.self_test();
      const cairn::store_check* worst = nullptr;
      for (const auto& p : report.points)
        if (worst == nullptr || p.outcome > worst->outcome) worst = &p;
      return std::to_string(static_cast<int>(worst->outcome)) + " " + worst->what + ": " + worst->seen;
    }
    return of_checkpoint(what, std::atoll(key.c_str()));
  }

 private:
  std::string of_checkpoint(const std::string& what, std::int64_t step) {
    if (what == "release") return lease_.release(), "done";
    auto& all = checkpoints();
    try {
      if (what == "save") return number_ = step * 7, all.save(state_, step).wait(), "done";
      if (what == "load") {  // what it loaded is leased as long as it lives
        cairn::checkpointer once{store_, cairn::checkpointer_options{.quiet = true}};
        number_ = 0;
        once.load(state_, step);
        return std::to_string(number_);
      }
      if (what == "delete") return all.remove(step), "done";
      if (what == "hold") return lease_ = all.lease(step), lease_.held() ? "held" : "not held";
    } catch (const cairn::storage_error& e) {
      if (e.id() == cairn::error_id::storage_leased) return "leased";
      if (e.id() == cairn::error_id::storage_not_committed) return "gone";
      throw;
    }
    if (what != "steps") return "error: no such command";
    std::vector<std::string> steps;
    for (const auto found : all.list()) steps.push_back(std::to_string(found));
    return joined(steps);
  }
  cairn::any_checkpointer& checkpoints() {
    if (!checkpoints_)
      checkpoints_.emplace(
          cairn::checkpointer{store_, cairn::keep_last(2), cairn::checkpointer_options{.quiet = true}});
    return *checkpoints_;
  }

  cairn::file_store store_;
  std::int64_t number_ = 0;
  cairn::state_dict state_;
  std::optional<cairn::any_checkpointer> checkpoints_;
  cairn::checkpoint_lease lease_;
  std::optional<cairn::file_store::object_writer> writer_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: helper_file_store DIRECTORY\n");
    return 2;
  }
  client one(argv[1]);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << one.answer(line) << std::endl;
    } catch (const cairn::error& e) {
      std::cout << "error " << cairn::error_name(e.id()) << ": " << e.message() << std::endl;
    } catch (const std::exception& e) {
      std::cout << "error: " << e.what() << std::endl;
    }
  }
}
