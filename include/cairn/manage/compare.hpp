// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/manage/element_values.hpp>
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/model/annotations.hpp>
#include <cairn/system/callback.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Options of a comparison.
struct compare_options {
  std::vector<std::string> items = {};  ///< globs of the names to compare; empty: all
  /// Compares numbers, too: of what differs, and of tensors of one shape and two dtypes.
  bool values = false;
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;  ///< for buffers, about
  /// Called by one thread with the bytes of tensors that were decided so far, and all of them.
  detail::callback<void(std::uint64_t done, std::uint64_t all)> progress = {};
  /// Called between reads; true ends the comparison early.
  detail::callback<bool()> stop = {};
};

/// In what an item of two checkpoints differs: the first of these that is so.
enum class difference_kind : std::uint8_t {
  only_in_a,
  only_in_b,
  item_kind,  ///< bytes, a tensor of the whole job, one of each rank
  shape,      ///< or the ranks that have one of their own, or the size of bytes
  type,       ///< the dtype alone
  content,    ///< the bytes alone
};
/// "only in A", "shape", ...
[[nodiscard]] std::string_view name_of(difference_kind kind) noexcept;

/// How an item of two checkpoints differs.
struct item_difference {
  std::string name;  ///< of the item
  difference_kind kind = difference_kind::content;
  std::string a;                  ///< what it is in A, such as "F32 [2, 3]"; empty where it is not
  std::string b;                  ///< the same in B
  std::uint64_t blocks = 0;       ///< of 1 MiB; of content alone
  std::uint64_t differing = 0;    ///< of these
  bool has_values = false;        ///< `values` was looked for
  value_differences values = {};  ///< of the elements that had to be read
};

/// What is said about only one of two checkpoints, or otherwise about the other one.
struct annotation_difference {
  std::string name;                   ///< of the annotation
  std::optional<annotation_value> a;  ///< nothing where it is not
  std::optional<annotation_value> b;  ///< nothing where it is not
};

/// The result of a comparison.
struct compare_report {
  std::vector<item_difference> differences = {};        ///< by name
  std::vector<annotation_difference> annotations = {};  ///< by name; equal() does not ask for them
  std::uint64_t items = 0;                              ///< names that were compared
  std::uint64_t by_digests = 0;                         ///< of these, decided without reading their bytes
  std::uint64_t bytes_read = 0;                         ///< of both
  bool complete = true;                                 ///< false: `stop` said so; differences may be missing
  /// True if everything was compared and nothing differs.
  [[nodiscard]] bool equal() const noexcept { return complete && differences.empty(); }
};

/// Compares two checkpoints item by item. Where both have a chunk of the same box, digests decide and nothing is read;
/// what ranks cut in another way, and files without digests, are read and compared. Bits count: 0 and -0 differ. A value
/// equals a tensor without dimensions. Memory: both manifests and records, the differences, and the buffers.
/// @throws corrupt_error, storage_error: of what must be read, whatever is damaged ends the comparison; usage_error
/// (usage_unknown_name) where a pattern matches no item of either
[[nodiscard]] compare_report compare_checkpoints(readable_checkpoint& a, readable_checkpoint& b,
                                                 const compare_options& options = {});

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/compare.ipp>
#endif
