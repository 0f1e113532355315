// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/model/metadata.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

class foreign_reader;

/// One safetensors file that something else than cairn wrote.
struct foreign_file {
  std::string name;                 ///< for people: without the directory
  std::string key;                  ///< in the store
  std::uint64_t bytes = 0;          ///< its size
  std::uint64_t data_begin = 0;     ///< where its data begins, behind the header
  std::uint64_t header_digest = 0;  ///< of the header's bytes
  std::string version = {};         ///< when it was first looked at here; see IdentifiesObjects
  bool same_header = false;         ///< found here, after that look
  /// What its header says in `__metadata__`, but for DCP_SHARDING_INFO.
  std::vector<std::pair<std::string, std::string>> metadata = {};
};

/// Safetensors files as a checkpoint: what all of their headers say together. Its items are tensors; the chunks of
/// an item carry the number of their file where those of a stored_checkpoint carry a rank. One thread at a time.
class foreign_checkpoint {
 public:
  /// The bytes of one box of an item.
  struct place {
    chunk box;                 ///< of the global tensor
    std::uint32_t file = 0;    ///< index in files()
    std::uint64_t offset = 0;  ///< in the file
    std::uint64_t bytes = 0;   ///< of the box
  };

  /// Of the bytes that encode_headers() gives. What it takes is consistent: each tensor is covered exactly once by
  /// boxes of one dtype. Allocates about ten times the bytes at most.
  /// @throws corrupt_error naming file, tensor, what was expected and what is there.
  explicit foreign_checkpoint(std::span<const std::byte> headers);

  /// What the files hold, with the number of files as the number of ranks.
  [[nodiscard]] const cairn::metadata& metadata() const noexcept { return metadata_; }
  /// All of them, in the order of their names.
  [[nodiscard]] const std::vector<foreign_file>& files() const noexcept { return files_; }
  /// Where a chunk of an item lies. O(log chunks). @throws plan_error where there is no such chunk.
  [[nodiscard]] const place& place_of(std::uint32_t item, std::uint64_t chunk) const;
  /// All places, item after item.
  [[nodiscard]] const std::vector<place>& places() const noexcept { return places_; }
  /// The item that a place is of. O(log items). @pre index < places().size()
  [[nodiscard]] std::uint32_t item_of(std::size_t index) const noexcept;

 private:
  friend class foreign_reader;
  struct found_tensor;
  void join(const found_tensor* first, const found_tensor* last);

  cairn::metadata metadata_;
  std::vector<foreign_file> files_;
  std::vector<place> places_;        // item after item, in each by box
  std::vector<std::size_t> firsts_;  // of each item in places_, and the end
};

namespace detail {

/// The header of a file as it was read.
struct foreign_header {
  std::string name;
  std::string key;
  std::uint64_t file_bytes = 0;
  std::vector<std::byte> bytes;  ///< the first ones of the file: length and text
};

/// Headers as bytes that are handed from one rank to the others, with the text of an index where there is one.
[[nodiscard]] std::vector<std::byte> encode_headers(std::span<const foreign_header> headers,
                                                    std::string_view index_name, std::string_view index_text);

}  // namespace detail

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/foreign/foreign_checkpoint.ipp>
#endif
