// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/storage/foreign/foreign_listing.hpp>
#include <cairn/storage/foreign/foreign_reader.hpp>
#include <cairn/storage/foreign/refusing_writer.hpp>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Safetensors files that something else wrote, as a Storage that is only read: Hugging Face directories with and
/// without an index, what PyTorch's HuggingFaceStorageWriter writes (DCP_SHARDING_INFO), and single files, on disk
/// and in a bucket. They are one checkpoint, of step 0, which any number of ranks loads with any sharding:
///
///   cairn::checkpointer base{cairn::safetensors_files{"models/llama"}};
///   base.load(state, cairn::safetensors_files::step);
///
/// Of a directory: the files that its index names (model.safetensors.index.json, or the only *.safetensors.index.json);
/// without an index, all *.safetensors in it, none of its subdirectories; where their names are
/// NAME-00001-of-00002.safetensors, each that these names count must be there. Symbolic links of what is read are followed,
/// wherever they lead, as the cache of Hugging Face needs it; an index names files of its directory, and no paths. Files have no digests: a bit that flipped is not found. Copies share the store.
class safetensors_files {
 public:
  using cairn_role = role::storage;
  /// See ReadOnlyStorage.
  static constexpr bool is_read_only = true;
  /// The number of their one checkpoint.
  static constexpr std::int64_t step = 0;

  /// A directory, an index, or the files that belong together: safetensors_files{"a.safetensors", "b.safetensors"}.
  /// Looks at names, links and the index now, and opens nothing else; paths are resolved now.
  /// @throws storage_error (storage_not_found), usage_error (usage_bad_option), corrupt_error (corrupt_missing_file)
  safetensors_files(std::initializer_list<std::string> paths)
      : safetensors_files(std::vector<std::string>(paths)) {}
  explicit safetensors_files(const std::string& path) : safetensors_files(std::vector<std::string>{path}) {}
  explicit safetensors_files(std::vector<std::string> paths);
  /// The files at the root of a store, or those of these keys: a bucket, memory. Asks the store when it is read.
  template <class Store>
    requires(!std::same_as<std::remove_cvref_t<Store>, safetensors_files> &&
             ByteStore<std::remove_cvref_t<Store>>)
  explicit safetensors_files(Store&& store, std::vector<std::string> keys = {})
      : safetensors_files(any_store(std::forward<Store>(store)), chosen_keys(std::move(keys))) {}

  [[nodiscard]] refusing_writer writer() const noexcept { return {}; }
  [[nodiscard]] foreign_reader reader() const { return foreign_reader(store_, listing_); }
  /// The description of the place, for messages.
  [[nodiscard]] std::string describe() const;

 private:
  struct located {
    any_store store;
    detail::foreign_listing listing;
  };
  safetensors_files(any_store store, std::optional<detail::foreign_listing> listing)
      : store_(std::move(store)), listing_(std::move(listing)) {}
  explicit safetensors_files(located found)
      : safetensors_files(std::move(found.store), std::move(found.listing)) {}
  [[nodiscard]] static std::optional<detail::foreign_listing> chosen_keys(std::vector<std::string> keys);
  [[nodiscard]] static located locate(const std::vector<std::string>& paths);

  any_store store_;
  std::optional<detail::foreign_listing> listing_;  // nothing: what the store has
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/safetensors_files.ipp>
#endif
