// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/store_reads.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/tiers/held_record.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

class held_session;

/// The manifest of a plan in a local tier.
struct tier_plan {
  std::vector<std::byte> bytes;
  manifest content;
};
/// Reads it from one of its two files. @throws corrupt_error, storage_error
[[nodiscard]] tier_plan plan_in_tier(const std::string& directory, std::uint64_t plan_digest);
/// Whether both of its files are there.
[[nodiscard]] bool has_plan_in_tier(const std::string& directory, std::uint64_t plan_digest);

/// One save that a local tier holds, as a ByteStore that nobody writes: the manifest, the records and the data files
/// that it would have in a store, so that what reads a store reads it. Copies share the open files. Any thread.
class held_store {
 public:
  /// What it is not: nothing is written.
  class object_writer {
   public:
    void write(std::span<const write_range> parts);
    void finish();
  };
  /// @throws corrupt_error where a record or the plan is missing or damaged, storage_error
  held_store(const std::string& directory, const held_step& which, std::span<const held_name> names);
  /// What a directory has of one save of several: the records and data files of the images that are whole and have these
  /// names, which are of one save. No manifest. @throws storage_error
  held_store(const std::string& directory, std::span<const held_name> names);
  /// The same of several directories, with a manifest; of two images of a rank the first.
  held_store(std::span<const std::string> directories, std::span<const std::vector<held_name>> names,
             std::int64_t step, std::vector<std::byte> manifest);

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint);
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes);
  void read(std::span<const read_range> ranges) const;
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) const;
  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix) const;
  void remove(std::string_view key);
  [[nodiscard]] std::string describe() const { return describe_; }
  [[nodiscard]] held_session begin_reads() const;
  /// Where these bytes lie; null where they cannot be had so. An image on a tmpfs is mapped, as long as a copy of this
  /// store lives.
  [[nodiscard]] const std::byte* lent(std::string_view key, std::uint64_t offset,
                                      std::uint64_t bytes) const noexcept;
  /// See held_step::runs.
  [[nodiscard]] const std::optional<std::vector<run_id>>& runs() const noexcept;

 private:
  struct content;
  struct image_file;
  struct object {
    std::vector<std::byte> bytes;  // of a small one
    std::size_t file = 0;          // of a data file: where in `files`
    std::uint64_t begin = 0;       // in that
    std::uint64_t size = 0;
    bool data = false;
  };
  struct part;
  /// Adds the image of a name. @throws corrupt_error, storage_error
  static part add_image(content& to, const std::string& directory, const held_name& name);
  std::shared_ptr<const content> content_;
  std::string describe_;
};

/// The ReadSession of a held_store: all is in memory.
class held_session {
 public:
  using store_type = held_store;
  explicit held_session(held_store from)
      : store_(std::move(from)), bytes_(std::make_unique<std::atomic<std::uint64_t>>(0)) {}
  void read(std::span<const read_range> ranges);
  [[nodiscard]] bool is_cached(std::string_view, std::uint64_t, std::uint64_t) const noexcept { return true; }
  [[nodiscard]] bool copy(std::string_view key, std::uint64_t offset, std::span<std::byte> destination,
                          std::uint64_t* digest);
  [[nodiscard]] read_figures figures() const noexcept { return {.cached = *bytes_, .direct = 0}; }

 private:
  held_store store_;
  std::unique_ptr<std::atomic<std::uint64_t>> bytes_;
};

/// What these records hold of all their ranks, ascending by step; of one step the newest last. `damaged` gets a
/// sentence for each save that is there and cannot be read. @throws storage_error
[[nodiscard]] std::vector<held_step> complete_saves(const std::string& directory,
                                                    std::span<const held_name> names,
                                                    std::vector<std::string>& damaged);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/tiers/held_store.ipp>
#endif
