// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/files_under_way.hpp>

#include <memory>

namespace cairn {
inline namespace v1 {

class rate_limiter;
class save_journal;

/// What a save carries in one process beside its bytes. Its save_progress owns it; the image that a writer gets
/// carries it. The pointers are set before the writer gets the image; then any thread may read them.
struct save_notes {
  /// The files that the writer is writing.
  files_under_way files;
  /// Where spans are recorded; null unless an observer asks for them.
  std::shared_ptr<save_journal> journal;
  /// From which a writer acquires before it writes; null: no limit.
  std::shared_ptr<rate_limiter> write_limit;
};

}  // namespace v1
}  // namespace cairn
