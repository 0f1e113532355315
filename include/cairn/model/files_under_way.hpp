// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <list>
#include <mutex>
#include <string>

namespace cairn {
inline namespace v1 {

/// The files that a writer is writing, for errors about deadlines. Any thread.
class files_under_way {
 public:
  /// One file is being written as long as this lives.
  class note {
   public:
    note(files_under_way& owner, std::string key);
    ~note();
    note(const note&) = delete;
    note& operator=(const note&) = delete;

   private:
    files_under_way* owner_;
    std::list<std::string>::iterator at_;
  };
  /// The file that was begun first; empty: none.
  [[nodiscard]] std::string first() const;

 private:
  mutable std::mutex mutex_;
  std::list<std::string> keys_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/files_under_way.ipp>
#endif
