// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/storage/foreign/foreign_checkpoint.hpp>
#include <cairn/storage/foreign/foreign_listing.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
struct load_work;
}  // namespace detail

/// A StorageReader of safetensors files that something else wrote; see safetensors_files. There is one checkpoint,
/// of step 0. Such files have no digests: what is verified are their sizes, their headers, and that tensors are
/// there as a whole, once. A file that was replaced by one with another header since it was opened is an error:
/// corrupt_identity; where the store models IdentifiesObjects also one that was replaced or written again between the first
/// and the last read of a checkpoint_type. Copies share the store.
class foreign_reader {
 public:
  using checkpoint_type = foreign_checkpoint;

  /// `listing`: the files; nothing: what the store has at its root when it is asked.
  explicit foreign_reader(any_store store, std::optional<detail::foreign_listing> listing = {})
      : store_(std::move(store)), listing_(std::move(listing)) {}

  /// The store from which it reads.
  [[nodiscard]] const any_store& store() const noexcept { return store_; }

  /// The one step that there is.
  [[nodiscard]] std::vector<std::int64_t> list() { return {0}; }
  /// Lists the files, if that was not done yet, and reads all headers. @throws storage_error, corrupt_error
  [[nodiscard]] std::vector<std::byte> fetch(std::int64_t step);
  [[nodiscard]] checkpoint_type open(std::int64_t step, std::span<const std::byte> headers);
  std::uint64_t read(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                     const target_resolver& resolver, read_options options, deadline until);
  /// See SharingReader.
  std::uint64_t read_shared(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                            const target_resolver& resolver, read_options options, read_exchange& exchange,
                            deadline until);
  /// All files must be there, with the headers and sizes that they had when the checkpoint was opened, and be those that
  /// stood there when it was first looked at. Reads the headers. @throws corrupt_error, storage_error
  void check_unchanged(checkpoint_type& checkpoint, deadline until);
  /// Reads everything: files must have the headers and sizes that they had when the checkpoint was opened.
  std::uint64_t verify(checkpoint_type& checkpoint, deadline until) {
    return verify(checkpoint, until, read_gate());
  }
  /// See GatedReader.
  std::uint64_t verify(checkpoint_type& checkpoint, deadline until, const read_gate& gate);

 private:
  [[nodiscard]] static detail::load_work find_work(const checkpoint_type& checkpoint, const load_plan& plan,
                                                   const target_resolver& resolver, device_load* devices);
  void check_files(checkpoint_type& checkpoint, const detail::load_work& work, deadline until,
                   const std::vector<bool>& wanted);
  /// Before what is read of them: each is noted, and then has the header that was opened, which another rank may have
  /// read, long ago. `again`: also those that had it at an earlier call.
  void check_headers(checkpoint_type& checkpoint, const detail::load_work& work, deadline until,
                     const std::vector<bool>& wanted, bool again);

  any_store store_;
  std::optional<detail::foreign_listing> listing_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/foreign/foreign_reader.ipp>
#endif
