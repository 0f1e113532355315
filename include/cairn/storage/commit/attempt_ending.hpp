// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/names.hpp>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What one process knows of a rank's part in an attempt. An answer that was lost may have been that it
/// worked, or the request may take effect later: what was tried and not refused counts as sent.
struct attempt_knowledge {
  bool here = false;      ///< this process writes the files, and no other one does
  bool record = false;    ///< the record was sent
  bool manifest = false;  ///< the manifest was sent
};

/// True for an answer by which a store says that it did not, and will not, do what it was asked.
[[nodiscard]] bool refused(const std::exception_ptr& why) noexcept;

/// A rank's part of an attempt that failed, on its way to being told and removed. Each go() does what the
/// store lets it do then, whatever else fails. One thread.
///
/// What may be removed, and when: files that no manifest can name. That is so for
/// - everything, once the attempt is marked as ended, and no manifest of it is seen after that;
/// - everything, while another attempt's manifest stands that nobody has ended;
/// - the files of a rank whose record is, or will stay, a failure or none: no manifest can be made;
/// - everything, for a coordinator that has not sent the manifest: it alone could. Its own record goes first,
///   so that another process which commits in its place, and looks for it afterwards, takes the manifest
///   back. So where there is no space for a mark, the files go first, and the mark takes their place.
class attempt_ending {
 public:
  attempt_ending(const any_store& store, const commit_options& options, const save_context& c,
                 std::exception_ptr failure, attempt_knowledge known);

  [[nodiscard]] const save_context& context() const noexcept { return c_; }

  /// True if nothing is left to do: the others know, and the files are gone, or the attempt is committed.
  [[nodiscard]] bool go() noexcept;

 private:
  [[nodiscard]] bool go_on();
  /// Whether this attempt's manifest stands; nothing where that cannot be seen.
  [[nodiscard]] std::optional<bool> committed() const noexcept;
  /// Ended by others already: then nobody needs to be told.
  void look_for_end() noexcept;
  /// This rank's record is none that a manifest could name.
  [[nodiscard]] bool unnamed() const noexcept;
  [[nodiscard]] bool alone_commits() const noexcept {
    return c_.coordinator() && known_.here && !known_.manifest;
  }
  [[nodiscard]] bool large() const noexcept { return c_.world_size > block_ranks_; }

  void tell();
  /// Publishes the failure as this rank's record, unless it has one.
  void report();
  /// Where nothing at all can be written, the coordinator still sees that its record is gone. @pre unnamed()
  void signal();

  [[nodiscard]] bool remove(const std::string& key);
  [[nodiscard]] bool remove();
  /// On the coordinator: the files of all ranks.
  [[nodiscard]] bool remove_all();
  /// The files of this rank, by their names: a listing would cost as much as there are ranks. A failure's
  /// record stays.
  [[nodiscard]] bool remove_own();

  any_store store_;
  step_objects objects_;
  file_placement place_;
  std::int32_t block_ranks_;
  save_context c_;
  std::exception_ptr failure_;
  attempt_knowledge known_;
  bool told_ = false;    ///< this rank's record is its failure
  bool marked_ = false;  ///< the attempt is marked as ended
  bool fenced_ = false;  ///< nothing of the attempt is, or can be, committed
  bool removed_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/attempt_ending.ipp>
#endif
