// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/model/error.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_job.hpp>
#include <cairn/storage/commit_parts.hpp>
#include <cairn/storage/manifest_format.hpp>
#include <cairn/storage/names.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The objects of a step's directory, as the commit and the cleaning both see them: files, the manifest,
/// marks that ended attempts. Any thread.
template <ByteStore Store>
class step_objects {
 public:
  explicit step_objects(std::shared_ptr<Store> store) noexcept : store_(std::move(store)) {}

  [[nodiscard]] std::vector<step_object> objects_of(std::int64_t step) const {
    const auto directory = step_directory(step) + "/";
    std::vector<step_object> found;
    for (const auto& key : list_keys(*store_, directory))
      if (auto known = known_object(key, directory.size())) found.push_back(std::move(*known));
    return found;
  }

  [[nodiscard]] bool stands(std::int64_t step) const noexcept {
    try {
      return store_->size(manifest_key(step)).has_value();
    } catch (...) {
      return false;
    }
  }
  /// The attempt whose manifest stands; nothing where none does, or a damaged one.
  [[nodiscard]] std::optional<std::uint64_t> standing_attempt(std::int64_t step) const {
    const auto key = manifest_key(step);
    const auto bytes = store_->read_all(key, max_manifest_bytes);
    if (!bytes) return std::nullopt;
    try {
      manifest m;
      (void)decode_manifest_header(*bytes, key, m);
      return m.attempt;
    } catch (const corrupt_error&) {
      return std::nullopt;
    }
  }
  /// True if a manifest of this attempt stands.
  [[nodiscard]] bool committed_by(std::int64_t step, std::uint64_t attempt) const {
    return standing_attempt(step) == attempt;
  }
  void throw_if_aborted(std::int64_t step, std::uint64_t attempt) const {
    const auto key = aborted_key(step, attempt);
    if (const auto bytes = store_->read_all(key, max_mark_bytes)) throw_mark(*bytes, step, key);
  }
  /// Throws storage_already_committed if the step is committed, and the reason of an attempt that was
  /// aborted.
  void check_open(const save_context& c) const {
    throw_if_aborted(c.step, c.attempt);
    if (store_->size(manifest_key(c.step))) fail_already_committed(c.step);
  }
  /// Ends an attempt for good, where the store lets it.
  void mark(std::int64_t step, std::uint64_t attempt, const std::exception_ptr& why) const noexcept {
    try {
      static_cast<void>(store_->publish_new(aborted_key(step, attempt), encode_failure(why)));
    } catch (...) {  // deadlines tell the others
    }
  }

 private:
  std::shared_ptr<Store> store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
