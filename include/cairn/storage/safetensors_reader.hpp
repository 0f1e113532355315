// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/sorted_map.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

struct file_holders;

namespace detail {
struct load_work;
struct load_file;
}  // namespace detail

/// A StorageReader of the files that safetensors_writer writes, over a store of any type. Copies share
/// the store.
///
/// Data is read in whole blocks of 1 MiB that are verified first; a block that goes to one contiguous place
/// of host memory without a cast, aligned as in the file or in memory of this host, is read straight there and
/// verified there: where that fails, read() throws, and the destination holds the damaged block. Data files must
/// have the exact size that the writer recorded.
class safetensors_reader {
 public:
  using checkpoint_type = stored_checkpoint;
  /// See ComparesBlocks.
  static constexpr bool compares_blocks = true;

  explicit safetensors_reader(any_store store) : store_(std::move(store)) {}
  template <ByteStore Store>
  explicit safetensors_reader(std::shared_ptr<Store> store)
      : safetensors_reader(any_store(std::move(store))) {}
  /// Of a checkpoint whose files not every rank can read: read_shared() brings them to those that cannot, of which
  /// read() has no way. `holders` has an entry for each rank that saved.
  safetensors_reader(any_store store, std::shared_ptr<const file_holders> holders)
      : store_(std::move(store)), holders_(std::move(holders)) {}

  /// The store from which it reads.
  [[nodiscard]] const any_store& store() const noexcept { return store_; }

  /// See ExpectsReads.
  void expect_reads() noexcept;
  [[nodiscard]] std::vector<std::int64_t> list();
  /// See ListsFrom.
  [[nodiscard]] std::vector<std::int64_t> list_from(std::int64_t step);

  [[nodiscard]] std::vector<std::byte> fetch(std::int64_t step);

  [[nodiscard]] checkpoint_type open(std::int64_t step, std::span<const std::byte> manifest_bytes);

  /// See WatchesCheckpoints: by the innermost store.
  [[nodiscard]] std::unique_ptr<change_watch> watch() { return store_.innermost().watch("step-"); }

  /// See ReportsRuns.
  [[nodiscard]] run_id run_of(std::int64_t step);

  std::uint64_t read(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                     const target_resolver& resolver, read_options options, deadline until);

  /// See SharingReader. One rank reads what several ranks want, in stripes that take turns, and sends it
  /// to the others; the same for records.
  std::uint64_t read_shared(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                            const target_resolver& resolver, read_options options, read_exchange& exchange,
                            deadline until);

  /// Reads the records that were not read yet, of all ranks, so that checkpoint.find() and record_of()
  /// return the place and the digest of each chunk. Returns the number of bytes read. @throws
  /// corrupt_error, storage_error, timeout_error
  std::uint64_t load_records(checkpoint_type& checkpoint, deadline until);

  /// Reads every file of the checkpoint: headers, which must be what the records say, and all blocks.
  std::uint64_t verify(checkpoint_type& checkpoint, deadline until) {
    return verify(checkpoint, until, read_gate());
  }
  /// See GatedReader; the gate is called for data files, which are nearly all bytes.
  std::uint64_t verify(checkpoint_type& checkpoint, deadline until, const read_gate& gate);

 private:
  /// For messages: the newest few.
  [[nodiscard]] std::string steps_there();
  static void throw_if_late(deadline until, const std::string& key);
  std::uint64_t fetch_records(checkpoint_type& checkpoint, std::vector<std::int32_t> ranks, deadline until,
                              detail::callback<void(std::int32_t, std::span<const std::byte>)> sink = {});
  [[nodiscard]] static std::vector<std::int32_t> ranks_of(const checkpoint_type& checkpoint,
                                                          const load_plan& plan);
  /// The records that a plan needs, each read by one of the ranks that need it.
  std::uint64_t exchange_records(checkpoint_type& checkpoint, const load_plan& plan, std::uint64_t budget,
                                 read_exchange& exchange, deadline until);
  /// What a plan wants of which files, not yet where it goes; `for_others`: and what is in the files of these ranks,
  /// which others may want. @pre the records are there.
  [[nodiscard]] static detail::load_work find_work(const checkpoint_type& checkpoint, const load_plan& plan,
                                                   const std::vector<std::int32_t>& for_others = {});
  /// Says where it goes; gives bytes items their size.
  static void find_targets(detail::load_work& work, const checkpoint_type& checkpoint,
                           const state_dict& state, const load_plan& plan, const target_resolver& resolver,
                           const read_options& options);
  using file_sizes =
      detail::sorted_map<std::string, std::optional<std::uint64_t>>;  ///< by key; nothing: no file
  /// Of the files of these ranks, before their records are there; of none where they are more than the store takes
  /// requests for at the same time.
  [[nodiscard]] file_sizes early_sizes(const checkpoint_type& checkpoint,
                                       const std::vector<std::int32_t>& ranks, deadline until);
  /// Before the first byte is read. `known`: those of the sizes that need not be asked for.
  void check_files(const detail::load_work& work, deadline until, const std::vector<bool>& wanted,
                   const file_sizes& known = {});
  std::uint64_t check_header(const checkpoint_type& checkpoint, const detail::load_file& file);

  any_store store_;
  std::shared_ptr<const file_holders> holders_;  ///< null: each rank can read all files
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/safetensors_reader.ipp>
#endif
