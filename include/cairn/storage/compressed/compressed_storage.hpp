// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/compressed/compressed_store.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/storage/safetensors_writer.hpp>
#include <cairn/system/shared.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Options of compressed_storage.
struct compression_options {
  /// The bytes of an item in each frame, which is encoded and decoded by itself: a power of two from 64
  /// KiB to 256 MiB. Loads verify, and share among ranks, blocks of 1 MiB. Larger frames are decoded once
  /// for each batch of blocks that they overlap, and compress better by at most 1 %.
  std::uint64_t frame_bytes = std::uint64_t{1} << 20;
  /// The number of threads that encode for one writer; at least 1. The training thread is not among them.
  std::size_t threads = 1;
};

/// A StorageWriter that writes images as compressed safetensors files. See compressed_storage.
template <ByteStore Store, Codec C>
class compressed_writer : public safetensors_writer_base {
  using base = safetensors_writer_base;

 public:
  explicit compressed_writer(std::shared_ptr<Store> store, C codec = C{}, frame_options frames = {},
                             commit_options options = {})
      : compressed_writer(store, detail::compressed_store<C>(any_store(store), std::move(codec), frames),
                          options) {}

  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return base::fingerprint() ^ C::id; }

  /// See StorageWriter. The manifest names the codec of each item.
  void commit(const save_context& c, const metadata& stored, deadline until) {
    auto encoded = stored;
    for (auto& item : encoded.items) item.codec = C::id;
    base::commit(c, encoded, until);
  }

  /// See Portable.
  [[nodiscard]] std::vector<std::byte> description() const
    requires Portable<Store> && Portable<C>
  {
    wire_writer out;
    detail::encode_options(out, base::options());
    const auto codec = compressed_.codec().description();
    out.put(compressed_.frames().frame_bytes).put(static_cast<std::uint64_t>(compressed_.frames().threads));
    out.put(static_cast<std::uint64_t>(codec.size())).raw(codec).raw(store_->description());
    return out.take();
  }
  [[nodiscard]] static compressed_writer from_description(std::span<const std::byte> bytes)
    requires Portable<Store> && Portable<C>
  {
    wire_reader in(bytes);
    const auto options = detail::decode_options(in);
    frame_options frames;
    frames.frame_bytes = in.get<std::uint64_t>();
    frames.threads = static_cast<std::size_t>(in.get<std::uint64_t>());
    auto codec = C::from_description(in.take(in.get<std::uint64_t>()));
    return compressed_writer(detail::make_shared<Store>(Store::from_description(in.take(in.left()))),
                             std::move(codec), frames, options);
  }

 private:
  template <ByteStore, Codec>
  friend class compressed_storage;
  compressed_writer(std::shared_ptr<Store> store, detail::compressed_store<C> compressed,
                    commit_options options)
      : base(any_store(compressed), options), store_(std::move(store)), compressed_(std::move(compressed)) {}

  std::shared_ptr<Store> store_;
  detail::compressed_store<C> compressed_;
};

/// Checkpoints as safetensors files whose items are compressed, over a ByteStore; a Storage:
///
///   cairn::checkpointer ckpt{cairn::compressed_storage{cairn::file_store{"checkpoints"},
///   cairn::zstd_codec{}}};
///
/// The image stays uncompressed: the save job compresses while it writes, on a thread or in the worker
/// process, and takes no time of a training loop that does not wait for the save. The names of data files
/// end in `.cairnz`, and the manifest names the codec; a reader without that codec refuses the
/// checkpoint. Loads read and decode only the frames that they need, on all threads of the load, and
/// verify the decoded blocks. It also reads uncompressed checkpoints in the same store. Sizes in records
/// and reports, and those before a save (check_space, preallocation), are uncompressed sizes. Copies,
/// writers and readers share store and codec.
template <ByteStore Store, Codec C>
class compressed_storage {
 public:
  using cairn_role = role::storage;

  /// `options`: with one rank a file, as compressed files have one writer each. @throws usage_error (usage_bad_option)
  explicit compressed_storage(Store store, C codec = C{}, compression_options compression = {},
                              commit_options options = {})
      : inner_(detail::make_shared<Store>(std::move(store))),
        store_(any_store(inner_), std::move(codec), {compression.frame_bytes, compression.threads}),
        options_(options) {
    if (compression.threads == 0)
      fail(error_id::usage_bad_option, "the number of threads for compression is 0; give at least 1");
    static_cast<void>(frame_index(C::id, dtype::u8, 0, compression.frame_bytes));  // refuses wrong sizes
    check_options(options, false, "a store of compressed files, which have one writer each,");
  }

  [[nodiscard]] compressed_writer<Store, C> writer() const {
    return compressed_writer<Store, C>(inner_, store_, options_);
  }
  [[nodiscard]] safetensors_reader reader() const { return safetensors_reader(any_store(store_)); }
  /// The description of the store, for messages.
  [[nodiscard]] std::string describe() const { return std::string(inner_->describe()); }
  [[nodiscard]] Store& store() const noexcept { return *inner_; }

 private:
  std::shared_ptr<Store> inner_;
  detail::compressed_store<C> store_;
  commit_options options_;
};

}  // namespace v1
}  // namespace cairn
