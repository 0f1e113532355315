// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/cast.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/tensor_view.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

class wire_reader;
class wire_writer;

/// One box that this rank writes. A plan may hold several boxes of one tensor (those of a flat shard).
struct write_item {
  std::string name;  ///< in the checkpoint; planners may rename
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;  ///< as stored; differs from the memory's where resolve() gives a cast
  extents global;          ///< shape of the whole tensor
  chunk box;               ///< what is written of it; `whole({})` for values and bytes
  item_flags flags;
  std::uint32_t entry = 0;  ///< index in state_dict::entries(): where the memory is found
  /// The stored size. For an item of bytes, its size when the plan was made; each save uses the size of
  /// then. A tensor of 0 bytes in a local plan (an empty shard) only carries its definition, and `box` is
  /// not used.
  std::uint64_t bytes = 0;
};

/// The boxes that one rank writes, in the order of its state_dict.
struct save_plan {
  /// What this rank writes.
  std::vector<write_item> items;
};

/// The memory of a write_item at one save; SavePlanner::resolve returns it.
struct item_source {
  tensor_view view;              ///< shape equals the item's box; for bytes items u8 [size]
  cast_function cast = nullptr;  ///< from view.type to the item's type where they differ
};

/// One box that this rank reads: it lies in one stored chunk and in one box of this rank's state.
struct read_item {
  std::uint32_t stored = 0;  ///< index in metadata::items
  std::uint32_t chunk = 0;   ///< its number in stored_item::chunks
  std::uint32_t entry = 0;   ///< index in state_dict::entries()
  std::uint32_t part = 0;    ///< index in state_entry::boxes
  cairn::chunk box;          ///< what is wanted, in coordinates of the global tensor; inside of both
  bool converted = false;    ///< by the conversion that a load option asks for, not by the planner's cast
};

/// How a rank's part of a load came about: where its bytes came from, and what its threads did, all of them together.
/// For a file_store requests of less than 64 KiB are in neither number of bytes, and where nothing goes past the page
/// cache, as with direct_io = false or without O_DIRECT, only blocks are that it has all of. Bytes that are read again
/// because memory had them wrong are in neither.
struct load_stages {
  std::uint64_t bytes_cached = 0;  ///< of what was read: from memory of this host, such as the page cache
  std::uint64_t bytes_direct = 0;  ///< of what was read: from the device, past the page cache; in whole pages
  std::uint64_t requests = 0;      ///< to a service such as S3's; 0 where the store is none
  std::uint64_t hedges = 0;        ///< of these: second ones for bytes whose first request was slow
  double read_seconds = 0;         ///< reading, and waiting for it
  double verify_seconds =
      0;  ///< digests of what was read, but for what was copied from memory: reading has those
  double deliver_seconds = 0;  ///< copies and casts to where it goes; 0 for what was read straight there
  // Processor time of all threads, without what they waited for:
  double read_cpu_seconds = 0;      ///< reading; with what a store decompresses
  double verify_cpu_seconds = 0;    ///< digests
  double deliver_cpu_seconds = 0;   ///< copies and casts
  double populate_cpu_seconds = 0;  ///< giving memory that was not touched before its pages
  /// The time of a small read with no other beside it, the fastest of a few; 0: it was not measured, as in a
  /// short load.
  double latency_seconds = 0;
  std::uint32_t reads_in_flight = 0;  ///< the most reads that were under way at once
};

/// The result of a load: what did not fit between state and checkpoint, with names in order, and what it
/// cost.
struct load_report {
  std::vector<std::string> missing;     ///< wanted by the state, not in the checkpoint: kept their values
  std::vector<std::string> unexpected;  ///< in the checkpoint, not in the state
  std::vector<std::string> mismatched;  ///< "name: sentence": dtype, shape, kind, or uncovered boxes
  std::vector<std::string> unmatched;   ///< patterns of the request that no item has; sorted
  // What load options did on this rank:
  std::vector<std::string> renamed;    ///< "name: the name in the checkpoint"
  std::vector<std::string> converted;  ///< "name: F32 to BF16"
  std::vector<std::string> resized;    ///< "name: [50257, 768] to [50304, 768]"
  std::int64_t migrated_from = -1;     ///< the version of a checkpoint that was migrated; -1: none was
  std::uint64_t bytes = 0;             ///< of the state that were filled, or that refresh() found filled
  std::uint64_t bytes_read = 0;        ///< fetched from the store
  /// How long the load took on this rank.
  double seconds = 0;
  load_stages stages;              ///< of the tensors; zeros where the storage does not tell
  bool plan_cached = false;        ///< this rank's plan was kept from an earlier load of the same checkpoint
  double plan_seconds = 0;         ///< of `seconds`: deciding what to read, or finding the plan again
  double plan_saved_seconds = 0;   ///< that planning would have cost: what it did when the plan was made
  bool from_tier = false;          ///< the bytes came from a local_tier, not from the store
  std::string sources = {};        ///< of a local_tier on several hosts: how many had it, what was rebuilt
  std::uint64_t blocks = 0;        ///< of 1 MiB or less, that refresh() compared; 0 for other loads
  std::uint64_t blocks_equal = 0;  ///< of these, that memory had already
};

/// The result of a refresh.
struct refresh_report : load_report {
  std::int64_t step = -1;  ///< of the checkpoint that memory holds now
};

/// The boxes that one rank reads.
struct load_plan {
  /// What this rank reads.
  std::vector<read_item> items;
  /// Boxes of the state that the checkpoint has nothing for, which a load option fills; `chunk` is the dimension in
  /// which the state is longer there.
  std::vector<read_item> fills;
  /// What fits and what does not; the load adds bytes and seconds.
  load_report report;
};

/// The destination of a read_item; LoadPlanner::resolve returns it.
struct item_target {
  tensor_view view;              ///< shape equals the read_item's box
  cast_function cast = nullptr;  ///< from the stored dtype to view.type where they differ
};

void encode(wire_writer& out, const extents& e);
/// @throws wire_error if there are more than eight, or a negative one.
[[nodiscard]] extents decode_extents(wire_reader& in);
void encode(wire_writer& out, const item_flags& f);
/// The inverse of encode() of item_flags. @throws wire_error
[[nodiscard]] item_flags decode_flags(wire_reader& in);

/// Encodes and decodes plans, for planners that must see all of them.
void encode(wire_writer& out, const save_plan& plan);
/// @throws wire_error on bytes that are no plan, with boxes outside of their tensors, or sizes that do not
/// agree.
[[nodiscard]] save_plan decode_save_plan(wire_reader& in);

/// A digest of what a plan writes, without the sizes of items of bytes and without addresses.
[[nodiscard]] std::uint64_t digest_of(const save_plan& plan);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/plan.ipp>
#endif
