// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The files of frozen items that a save links to those of an earlier save of this rank. One thread.
class linked_files {
 public:
  /// All outlive this. `files`: index k of the list has the index `first` + k among the rank's files of both saves.
  linked_files(const any_store& store, const file_placement& place, const save_context& context,
               const std::vector<linked_file>& files, std::uint32_t first)
      : store_(store), place_(place), context_(context), files_(files), first_(first) {}

  /// Links all of them: those of the first of context.link_from that has them. They are durable then.
  /// The time is looked at before each file: one that the store has begun to copy is waited for.
  /// @throws storage_error (storage_not_found) where none has them: they were removed; timeout_error (timeout_write);
  /// the store's errors
  void link(deadline until);
  /// Adds the files and their items behind what the record has. @pre link() has returned
  void add_to(record& written) const;

 private:
  void require_time(deadline until) const;
  /// The record of that save, if it has these files.
  [[nodiscard]] std::optional<record> record_with_files(const save_attempt& of) const;
  /// False where a file is gone; nothing is linked then.
  [[nodiscard]] bool link_all(const save_attempt& of, deadline until) const;

  const any_store& store_;
  const file_placement place_;
  const save_context& context_;
  const std::vector<linked_file>& files_;
  const std::uint32_t first_;
  record source_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/linked_files.ipp>
#endif
