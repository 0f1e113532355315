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

/// What one process knows of an attempt on a rank. If the answer of a request was lost, the request may
/// have succeeded or may still take effect: it counts as sent unless the store refused it.
struct attempt_knowledge {
  bool here = false;      ///< this process writes the files, and no other one does
  bool record = false;    ///< the record was sent
  bool manifest = false;  ///< the manifest was sent
};

/// True for an error by which a store says that it has not carried out a request, and will not.
[[nodiscard]] bool refused(const std::exception_ptr& why) noexcept;

/// Reports a failed attempt of a rank to the others and removes its files. Each go() does what the
/// store allows at that time, whatever else fails. One thread.
///
/// It removes only files that no manifest can name. These are
/// - all files, after the attempt was marked as ended and no manifest of it exists;
/// - all files, while there is a manifest of another attempt that nobody has ended;
/// - the files of a rank whose record is, or will stay, a failure or absent: no manifest can be made;
/// - all files, for a coordinator that has not sent the manifest, since nobody else can, and that sees none
///   of this attempt. It removes its own record first, so that another process that commits in its place,
///   and looks for the record afterwards, withdraws the manifest. If there is no space for a mark, it
///   removes the files first, and then writes the mark into the free space.
class attempt_ending {
 public:
  attempt_ending(const any_store& store, const commit_options& options, const save_context& c,
                 std::exception_ptr failure, attempt_knowledge known);

  [[nodiscard]] const save_context& context() const noexcept { return c_; }

  /// True if nothing is left to do: the other ranks know and the files are removed, or the attempt is
  /// committed.
  [[nodiscard]] bool go() noexcept;

 private:
  [[nodiscard]] bool try_to_end();
  /// Whether this attempt's manifest exists; nothing where that is unknown.
  [[nodiscard]] std::optional<bool> committed() const noexcept;
  /// True if others have ended the attempt already, so that nobody needs to be told.
  void look_for_end() noexcept;
  /// True if no manifest can name this rank's record.
  [[nodiscard]] bool unnamed() const noexcept;
  [[nodiscard]] bool alone_commits() const noexcept {
    return c_.coordinator() && known_.here && !known_.manifest;
  }
  [[nodiscard]] bool large() const noexcept { return c_.world_size > block_ranks_; }

  void tell_others();
  /// Publishes the failure as this rank's record, unless it has one.
  void report();
  /// Removes the record. Even where nothing can be written, the coordinator sees that it is gone. @pre
  /// unnamed()
  void signal();

  [[nodiscard]] bool remove(const std::string& key);
  [[nodiscard]] bool remove();
  /// Removes the files of all ranks, on the coordinator.
  [[nodiscard]] bool remove_all();
  /// Removes the files of this rank by their names, since a listing would cost O(ranks). The record of a
  /// failure stays.
  [[nodiscard]] bool remove_own();

  any_store store_;
  step_objects objects_;
  file_placement place_;
  std::int32_t block_ranks_;
  save_context c_;
  std::exception_ptr failure_;
  attempt_knowledge known_;
  bool failure_recorded_ = false;  ///< this rank's record is its failure
  bool marked_ = false;            ///< the attempt is marked as ended
  bool fenced_ = false;            ///< nothing of the attempt is, or can be, committed
  bool removed_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/attempt_ending.ipp>
#endif
