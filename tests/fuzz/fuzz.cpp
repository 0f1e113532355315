// SPDX-License-Identifier: Apache-2.0
// uses: cairn::zstd cairn::s3
// One libFuzzer program for everything that cairn reads from outside; CAIRN_FUZZ_TARGET chooses: manifest,
// record, safetensors, files, plan, frame, config, codec, s3, job, link. What is refused must be refused by the typed
// error of its reader; what is accepted must be written again as it was read. tests/fuzz/run.sh starts it.
//
//   CAIRN_FUZZ_SEEDS=tests/fuzz/corpus fuzz    writes the first inputs of every target there, and ends
//   CAIRN_FUZZ_FIXED=N fuzz    reads the inputs in the directory CAIRN_FUZZ_CORPUS and N inputs made of them,
//   which CAIRN_FUZZ_SEED alone decides, and ends; one that fails is written to the file CAIRN_FUZZ_FAILED
#include <cairn/comm/collective_frame.hpp>
#include <cairn/comm/collective_pieces.hpp>
#include <cairn/comm/shared_memory/job_rendezvous.hpp>
#include <cairn/comm/shared_memory/message_ring.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/execute/job_message.hpp>
#include <cairn/execute/worker_settings.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/model/chunk_codec.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/glob.hpp>
#include <cairn/plan/load/read_requests.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/compressed/compressed_store.hpp>
#include <cairn/storage/compressed/item_frames.hpp>
#include <cairn/storage/load/planned_want.hpp>
#include <cairn/storage/load/record_reading.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#if CAIRN_USES_S3 + 0
#include <cairn/stores/s3_store.hpp>
#include <support/quick_clock.hpp>
#endif
#if CAIRN_USES_ZSTD + 0
#include <cairn/storage/compressed/zstd_codec.hpp>
#include <cairn/system/digest.hpp>
#else
#include <support/codec_archetype.hpp>
#endif

#include "../formats_samples.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sanitizer/allocator_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

using bytes = std::vector<std::byte>;
using input = std::span<const std::byte>;

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}
/// What the call returns, or nothing where it throws an Error. Any other exception ends the run.
template <class Error, class Call>
auto accepted(Call&& call) -> std::optional<decltype(call())> {
  try {
    return call();
  } catch (const Error&) {
    return std::nullopt;
  }
}
std::string_view text_of(input in) {
  return {reinterpret_cast<const char*>(in.data()), in.size()};
}
bytes bytes_of(std::string_view text) {
  const auto all = std::as_bytes(std::span(text.data(), text.size()));
  return {all.begin(), all.end()};
}

// --- The targets
// ------------------------------------------------------------------------------------------------

void read_manifest(input in) {
  const auto read = [](input from) {
    return accepted<cairn::corrupt_error>([&] { return cairn::decode_manifest(from, "manifest"); });
  };
  const auto m = read(in);
  // Item by item, as a load does: whatever is damaged elsewhere.
  const auto by_item = accepted<cairn::corrupt_error>([&] {
    auto opened = cairn::open_manifest({in.begin(), in.end()}, "manifest");
    const auto& items = opened.content.items;
    for (auto i = items.size(); i-- > 0;) {
      const auto& item = std::as_const(items)[i];
      demand(items.index_of(item.name) == i, "an item is found by its name");
    }
    return opened;
  });
  if (!m) return;
  demand(by_item && cairn_test::same(*m, *by_item), "a manifest that was read is read item by item");
  const auto again = read(cairn::encode_manifest(*m));
  demand(again && cairn_test::same(*m, *again), "a manifest that was read is written as it was");
}

/// A file that several ranks share, which ends with the bodies of their records and then the headers. Gives
/// what is read of a rank's record.
std::optional<bytes> read_shared_record(input file, std::int32_t rank, std::int32_t ranks) {
  cairn::memory_store store;
  store.put_new("shared", file);
  cairn::manifest m;
  m.content.world_size = ranks;
  m.placement.ranks_per_file = 4;
  cairn::manifest_record named;
  named.rank = rank;
  const auto read = accepted<cairn::corrupt_error>([&] {
    const auto at = cairn::detail::record_header_offset(m.placement, rank, ranks, file.size(), "shared");
    named.record_digest = cairn::decode_record_header(file.subspan(at), "shared").header_digest;
    return cairn::detail::read_record(cairn::any_store::lent(store), m, named, "shared").value();
  });
  demand(!read || read->size() <= file.size(), "a record is in its file");
  return read;
}
void read_shared_records(input in, bool good) {
  for (const std::int32_t ranks : {1, 3})
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      if (const auto read = read_shared_record(in, rank, ranks))
        static_cast<void>(
            accepted<cairn::corrupt_error>([&] { return cairn::decode_record(*read, "shared"); }));
  constexpr std::size_t header = cairn::record_header_bytes;
  if (in.size() < header) return;
  bytes file(100);
  for (int i = 0; i < 2; ++i) file.insert(file.end(), in.begin() + header, in.end());
  for (int i = 0; i < 2; ++i) file.insert(file.end(), in.begin(), in.begin() + header);
  for (const std::int32_t rank : {0, 1}) {
    const auto read = read_shared_record(file, rank, 2);
    demand(!good || (read && std::ranges::equal(*read, in)), "a record is found in a shared file");
  }
}

void read_record(input in) {
  const auto read = [](input from) {
    return accepted<cairn::corrupt_error>([&] { return cairn::decode_record(from, "record"); });
  };
  if (const auto r = read(in)) {
    const auto again = cairn::encode_record(*r);
    // A header has room for later versions, which this one passes over; the tables have none.
    demand(std::ranges::equal(input(again).subspan(128), in.subspan(128)),
           "the tables of a record are written as they were");
    const auto a = cairn::decode_record_header(in, "record");
    const auto b = cairn::decode_record_header(again, "record");
    demand(a.run == b.run && a.attempt == b.attempt && a.step == b.step && a.rank == b.rank &&
               a.world_size == b.world_size && a.plan_digest == b.plan_digest &&
               a.data_bytes == b.data_bytes && a.files == b.files,
           "the header of a record is written as it was");
  }
  read_shared_records(in, read(in).has_value());
  const auto failure =
      accepted<cairn::corrupt_error>([&] { return cairn::decode_failure_record(in, "record"); });
  if (failure) demand(!cairn::encode_failure(*failure).empty(), "a failure that was read can be told");
}

/// The first eight bytes say how long the data behind the header is.
void read_safetensors(input in) {
  if (in.size() < 8) return;
  std::uint64_t data = 0;
  std::memcpy(&data, in.data(), 8);
  const auto read = [&](input from, std::uint64_t data_bytes) {
    return accepted<cairn::corrupt_error>([&]() -> std::optional<cairn::safetensors_header> {
      std::uint64_t length = 0;
      if (from.size() < 8) return {};
      std::memcpy(&length, from.data(), 8);
      std::uint64_t whole = 0;
      if (__builtin_add_overflow(length, data_bytes, &whole) ||
          __builtin_add_overflow(whole, std::uint64_t{8}, &whole))
        whole = UINT64_MAX;
      return cairn::decode_safetensors_header(from, whole, "file");
    });
  };
  const auto h = read(in.subspan(8), data);
  if (!h || !*h) return;
  const auto again = read(cairn::encode_safetensors_header(**h), data);
  demand(again && *again && (*again)->entries.size() == (*h)->entries.size(),
         "a header that was read is written again");
  for (std::size_t i = 0; i < (*h)->entries.size(); ++i) {
    const auto& a = (*h)->entries[i];
    const auto& b = (**again).entries[i];
    demand(a.key == b.key && a.type == b.type && a.shape == b.shape && a.begin == b.begin && a.end == b.end,
           "an entry of a header is written as it was read");
  }
}

/// Safetensors files of others: files and an index as a store has them, each with two bytes of length before it, the
/// index first; or, where the first byte is 255, headers as one rank hands them to the others.
void read_files(input in) {
  if (in.empty()) return;
  cairn::memory_store store;
  const auto choice = static_cast<unsigned>(in[0]);
  in = in.subspan(1);
  auto reader = cairn::safetensors_files(store).reader();
  const auto opened = accepted<cairn::error>([&]() -> cairn::foreign_checkpoint {
    if (choice == 255) return reader.open(0, in);
    for (unsigned i = 0; i <= 4 && in.size() >= 2; ++i) {
      const auto wanted = static_cast<std::size_t>(in[0]) | static_cast<std::size_t>(in[1]) << 8;
      const auto file = in.subspan(2, std::min(wanted, in.size() - 2));
      in = in.subspan(2 + file.size());
      if (i != 0 || choice % 2 == 1)
        store.put_new(i == 0 ? "model.safetensors.index.json"
                             : std::string(1, static_cast<char>('a' + i)) + ".safetensors",
                      file);
    }
    return reader.open(0, reader.fetch(0));
  });
  if (!opened) return;
  std::uint64_t tensors = 0;
  std::uint64_t files = 0;
  for (const auto& f : opened->files()) files += f.bytes;
  for (std::uint32_t i = 0; i < opened->metadata().items.size(); ++i) {
    const auto& item = opened->metadata().items[i];
    std::uint64_t bytes = 0;
    for (std::uint64_t c = 0; c < item.chunks.size(); ++c) {
      const auto& place = opened->place_of(i, c);
      const auto& file = opened->files()[place.file];
      demand(place.box == item.chunks[c].box, "a chunk has its place");
      demand(place.offset <= file.bytes && place.bytes <= file.bytes - place.offset,
             "a place lies in its file");
      bytes += place.bytes;
    }
    demand(bytes == cairn::checked_bytes(item.type, item.global), "a tensor is there once, as a whole");
    tensors += bytes;
  }
  if (choice == 255) return;
  demand(tensors <= files, "no more is loaded than the files have");
  std::vector<bytes> memory;
  cairn::state_dict state;
  for (const auto& item : opened->metadata().items) {
    memory.emplace_back(static_cast<std::size_t>(cairn::checked_bytes(item.type, item.global).value()));
    state.tensor(item.name, cairn::contiguous_view(memory.back().data(), item.type, item.global));
  }
  cairn::default_planner planner;
  auto checkpoint = reader.open(0, reader.fetch(0));
  const auto plan = planner.plan(state, checkpoint.metadata(), {});
  const auto until = cairn::deadline::never();
  const auto read = reader.read(
      checkpoint, state, plan,
      [&](const cairn::read_item& item) { return planner.resolve(state, checkpoint.metadata(), item); },
      {.memory_budget = 2 << 20}, until);
  demand(read == tensors, "every byte of a tensor is read once");
  demand(reader.verify(checkpoint, until) >= tensors, "what was opened verifies");
}

/// What planning may do with a summary: a value, or a refusal that says why.
template <class Call>
auto planned(Call&& call) -> std::optional<decltype(call())> {
  try {
    return call();
  } catch (const cairn::plan_error&) {
  } catch (const cairn::usage_error& e) {
    demand(e.id() == cairn::error_id::usage_bad_name, "only names are the user's fault");
  }
  return std::nullopt;
}
/// What a rank holds of a summary, as a plan of its own.
cairn::save_plan plan_of(const cairn::plan_summary& all, std::int32_t rank) {
  cairn::save_plan plan;
  for (std::size_t n = 0; n < all.size(); ++n) {
    const auto& i = all[n];
    const auto add = [&](cairn::chunk box, std::uint64_t size) {
      cairn::write_item item{std::string(all.name(n)),      i.kind, i.type, i.global, std::move(box), {},
                             static_cast<std::uint32_t>(n), size};
      item.flags.per_rank = i.per_rank;
      plan.items.push_back(std::move(item));
    };
    all.for_each_box(n, [&](const cairn::chunk_progression& p) {
      const auto index = p.index_of(rank);
      if (!index) return;
      const auto box = p.at(*index).box;
      if (i.kind == cairn::item_kind::bytes)
        add(cairn::whole({}), static_cast<std::uint64_t>(box.sizes[0]));
      else
        add(box, cairn::bytes_of(i.type, box.volume()));
    });
    all.for_each_without(n, [&](const cairn::chunk_progression& p) {
      const auto none = cairn::extents::zeros(i.global.rank());
      if (p.index_of(rank)) add({none, none}, 0);
    });
  }
  return plan;
}
/// True if a summary is small enough to be taken apart, and is one that ranks make.
bool can_be_made(const cairn::plan_summary& all) {
  std::int64_t left = 1 << 14;
  bool rounded = true;
  for (std::size_t n = 0; n < all.size(); ++n) {
    all.for_each_box(n, [&](const cairn::chunk_progression& p) {
      left -= p.count();
      rounded = rounded && (all[n].kind != cairn::item_kind::bytes ||
                            cairn::detail::rounded_bytes(static_cast<std::uint64_t>(p.first.sizes[0])) ==
                                p.first.sizes[0]);
    });
    all.for_each_without(n, [&](const cairn::chunk_progression& p) { left -= p.count(); });
    if (left < 0) return false;
  }
  return rounded;
}
/// Everything that all ranks write, against what the metadata says and what the tensors are.
void plan_all_ranks(const cairn::plan_summary& all, const cairn::metadata& stored, int world) {
  cairn::default_planner planner;
  std::vector<std::vector<cairn::stored_chunk>> written(all.size());
  cairn::plan_summary again;
  for (int rank = 0; rank < world; ++rank) {
    auto plan = plan_of(all, rank);
    again = planner.merge(std::move(again), planner.summarise(plan, rank));
    const auto mine = planner.finish(std::move(plan), all, rank, world);
    for (const auto& i : mine.items) {
      const auto n = all.find(i.name);
      demand(n < all.size(), "what is written is in the summary");
      written[n].push_back({i.kind == cairn::item_kind::bytes ? cairn::whole(i.global) : i.box, rank});
    }
  }
  demand(again == all, "ranks that hold what a summary says make this summary");
  demand(stored.items.size() == all.size(), "every item is described");
  for (std::size_t n = 0; n < all.size(); ++n) {
    cairn::chunk_set made = cairn::chunk_set::from(written[n]);
    if (all[n].kind == cairn::item_kind::bytes) {
      demand(made.size() == stored.items[n].chunks.size(), "bytes are written as described");
      continue;
    }
    demand(made == stored.items[n].chunks, "what is written is what is described");
    if (all[n].per_rank) continue;
    std::int64_t volume = 0;
    for (const auto& c : written[n]) volume += c.box.volume();
    demand(volume == all[n].global.volume(), "every element is written once");
  }
}
void read_summary(const cairn::plan_summary& summary, int world) {
  cairn::default_planner planner;
  const auto all = planned([&] { return planner.metadata(summary, world); });
  for (const int rank : {0, world - 1}) {
    const auto mine = planned([&] { return planner.finish({}, summary, rank, world); });
    demand(mine.has_value() == all.has_value(), "what can be planned can be described");
  }
  if (all && can_be_made(summary)) plan_all_ranks(summary, *all, world);
}
/// The shape of a tensor, its chunks, and behind them a box that is looked for.
void read_chunks(input in, int world) {
  struct tensor {
    cairn::extents global;
    cairn::chunk_set chunks;
  };
  const auto read = [&](input from) {
    return accepted<cairn::wire_error>([&] {
      cairn::compact_reader reader(from);
      tensor t;
      t.global = cairn::extents::zeros(static_cast<int>(reader.number(cairn::extents::max_rank)));
      for (int d = 0; d < t.global.rank(); ++d) t.global.set(d, reader.signed_number());
      t.chunks = cairn::decode_chunk_set(reader, t.global, world);
      reader.finish();
      return t;
    });
  };
  const auto t = read(in);
  if (!t) return;
  const auto& chunks = t->chunks;
  cairn::compact_writer out;
  out.number(static_cast<std::uint64_t>(t->global.rank()));
  for (const auto size : t->global) out.number(size);
  cairn::encode(out, chunks);
  const auto again = read(out.view());
  demand(again.has_value(), "chunks that were read can be written");
  if (chunks.size() > 1 << 12) return;
  demand(again->chunks == chunks, "chunks are written as they were read");
  const auto list = chunks.expand();
  demand(list.size() == chunks.size(), "chunks are counted");
  demand(cairn::chunk_set::from(list) == chunks, "a list of chunks makes the same set");
  std::size_t at = 0;
  for (const auto& c : chunks) {
    demand(c == list[at] && chunks[at] == c, "a chunk has one number");
    ++at;
  }
  std::size_t of_ranks = 0;
  for (int rank = 0; rank < world; ++rank)
    chunks.of_rank(rank, [&](std::uint64_t index, const cairn::stored_chunk& c) {
      demand(c.rank == rank && list[index] == c, "a chunk is found by its rank");
      ++of_ranks;
    });
  demand(of_ranks == list.size(), "every chunk is found by its rank");
  // The middle of the tensor, and what each eighth chunk covers.
  auto middle = cairn::whole(t->global);
  for (int d = 0; d < t->global.rank(); ++d) {
    middle.offsets.set(d, t->global[d] / 3);
    middle.sizes.set(d, t->global[d] / 2);
  }
  std::vector<cairn::chunk> wanted{middle};
  for (std::size_t k = 0; k < list.size() && k < 64; k += 8) wanted.push_back(list[k].box);
  for (const auto& box : wanted) {
    std::vector<bool> met(list.size());
    chunks.overlaps(box, [&](std::uint64_t index, const cairn::stored_chunk& c, const cairn::chunk& common) {
      demand(!met[index] && list[index] == c && cairn::intersect(c.box, box) == common,
             "what chunks and a box have in common is found once");
      met[index] = true;
    });
    for (std::size_t k = 0; k < list.size(); ++k)
      demand(met[k] == cairn::intersect(list[k].box, box).has_value(), "all that overlaps is found");
  }
}

/// The first byte chooses the number of ranks and what is read: a plan (odd), a summary, two of them that
/// are merged (16; the next two bytes are the length of the first one), the chunks of a tensor (32).
void read_plan(input in) {
  if (in.empty()) return;
  const auto choice = std::to_integer<unsigned>(in[0]);
  constexpr int worlds[] = {1, 2, 3, 4, 8, 16, 32, 64};
  const int world = worlds[choice / 2 % 8];
  in = in.subspan(1);
  if (choice % 2 != 0) {
    const auto plan = accepted<cairn::wire_error>([&] {
      cairn::wire_reader from(in);
      auto p = cairn::decode_save_plan(from);
      from.finish();
      return p;
    });
    if (!plan) return;
    cairn::wire_writer out;
    cairn::encode(out, *plan);
    demand(std::equal(out.view().begin(), out.view().end(), in.begin(), in.end()),
           "a plan is written as it was read");
    static_cast<void>(cairn::digest_of(*plan));
    return;
  }
  if ((choice & 32) != 0) return read_chunks(in, world);
  cairn::default_planner planner;
  const auto read = [&](input from) {
    auto summary = accepted<cairn::wire_error>([&] { return planner.decode(from); });
    if (!summary) return summary;
    const auto again = planner.encode(*summary);
    demand(std::equal(again.begin(), again.end(), from.begin(), from.end()),
           "a summary is written as it was read");
    const auto merged = planner.merge(*summary, cairn::plan_summary{});
    demand(merged == *summary, "nothing changes a summary that it is merged with");
    return summary;
  };
  if ((choice & 16) == 0) {
    if (const auto summary = read(in)) read_summary(*summary, world);
    return;
  }
  if (in.size() < 2) return;
  const auto size = std::to_integer<std::size_t>(in[0]) + std::to_integer<std::size_t>(in[1]) * 256;
  in = in.subspan(2);
  const auto low = read(in.first(std::min(size, in.size())));
  const auto high = read(in.subspan(std::min(size, in.size())));
  if (!low || !high) return;
  const auto merged = planner.merge(*low, *high);
  const auto decoded = accepted<cairn::wire_error>([&] { return planner.decode(planner.encode(merged)); });
  demand(decoded && *decoded == merged, "what was merged is a message");
  if (can_be_made(merged))
    demand(planner.merge(*high, *low) == merged, "what is merged does not depend on the order");
  read_summary(merged, world);
}

/// The first byte chooses: a frame of a collective in a world of so many ranks, or pieces in a ring.
void read_frame(input in) {
  if (in.empty()) return;
  const auto choice = std::to_integer<int>(in[0]);
  in = in.subspan(1);
  const int size = 1 + choice / 2;
  const auto frame_of = [&](const bytes& message) {
    const auto frame =
        accepted<cairn::wire_error>([&] { return cairn::detail::decode_frame(message, size); });
    if (!frame) return;
    const auto& f = *frame;
    const auto value_of = [](const cairn::detail::collective_frame& read) {
      return input(read.what.value).subspan(read.head);
    };
    const auto again = cairn::detail::encode_frame(f.call, f.step, f.what, value_of(f));
    const auto other = accepted<cairn::wire_error>([&] { return cairn::detail::decode_frame(again, size); });
    demand(other.has_value(), "a frame that was read can be written");
    demand(std::ranges::equal(value_of(*other), value_of(f)) && other->what.failure == f.what.failure &&
               other->what.absent.size() == f.what.absent.size() && other->call.epoch == f.call.epoch,
           "a frame is written as it was read");
    if (f.what.ok()) return;
    try {
      cairn::detail::raise(f.what, f.call);
    } catch (const cairn::error&) {
    }
  };
  if (choice % 2 == 0) return frame_of({in.begin(), in.end()});
  const auto messages = accepted<cairn::wire_error>([&] { return cairn::detail::read_pieces(in); });
  if (!messages) return;
  std::size_t total = 0;
  for (const auto& m : *messages) {
    total += m.size();
    frame_of(m);
  }
  demand(total <= in.size(), "messages are no longer than their pieces");
}

/// Whether a pattern matches, by the definition.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*')
    return matches(pattern.substr(1), name) || (!name.empty() && matches(pattern, name.substr(1)));
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         matches(pattern.substr(1), name.substr(1));
}
/// What users say: options, names, numbers, patterns, names of directories and objects.
void read_config(input in) {
  const auto text = text_of(in);
  if (const auto step = cairn::parse_step(text))
    demand(cairn::step_directory(*step) == text, "a step's directory has one name");
  if (const auto object = cairn::parse_object(text))
    demand(cairn::to_string(*object) == text, "an object has one name");
  if (const auto key = cairn::parse_key(text)) {
    demand(cairn::object_key(key->step, key->object) == text, "an object has one key");
    demand(cairn::valid_key(text), "keys of objects are keys");
  }
  if (const auto unfinished = cairn::detail::unfinished_object(text))
    demand(text.starts_with(cairn::object_key(unfinished->step, unfinished->object)),
           "an unfinished object begins with its key");
  if (cairn::valid_key(text)) {
    demand(!text.empty() && text.front() != '/' && text.size() <= 1024, "a key is no absolute path");
    demand(("/" + std::string(text) + "/").find("/../") == std::string::npos, "a key does not climb");
    demand(text.find('\0') == std::string_view::npos, "a key is a C string");
  }
  if (const auto type = cairn::dtype_from_name(text))
    demand(cairn::name_of(*type) == text, "a dtype has one name");
  const auto job = accepted<cairn::usage_error>([&] {
    cairn::detail::check_job_name(text);
    return true;
  });
  if (job) demand(text.find_first_of("/\\ ") == std::string_view::npos, "the name of a job is plain");

  const auto cut = text.find('\n');
  if (cut != std::string_view::npos) {
    const auto pattern = text.substr(0, std::min<std::size_t>(cut, 12));
    const auto name = text.substr(cut + 1, 16);
    demand(cairn::glob_matches(pattern, name) == matches(pattern, name),
           "a pattern matches what its definition says");
  }
  if (in.size() >= 24) {
    std::uint64_t n[3];
    std::memcpy(n, in.data(), sizeof n);
    cairn::file_store_options options;
    options.write_bytes = n[0], options.read_bytes = n[1];
    options.writes_in_flight = n[2] % 256, options.reads_in_flight = n[2] / 256 % 256;
    const auto store = accepted<cairn::usage_error>([&] {
      return cairn::file_store{std::string(text.substr(24)), options};
    });
    if (store)
      demand(store->options().write_bytes <= (1u << 30) && store->options().write_bytes % 4096 == 0 &&
                 store->options().writes_in_flight - 1 < 64,
             "options that are accepted make sense");
    float values[8] = {};
    cairn::extents shape;
    const auto rank = static_cast<int>(n[2] % 4);
    const auto sizes = accepted<cairn::usage_error>([&] {
      auto s = cairn::extents::filled(rank, 0);
      for (int i = 0; i < rank; ++i) s.set(i, static_cast<std::int64_t>(n[i] % 10) - 1);
      return s;
    });
    if (sizes) shape = *sizes;
    const auto state = accepted<cairn::usage_error>([&] {
      cairn::state_dict s;
      s.tensor(std::string(text.substr(24)), values, shape);
      return s.entries().size();
    });
    if (state)
      demand(cairn::name_problem(text.substr(24)).empty(), "an item that is accepted has a good name");
  }
}

#if CAIRN_USES_ZSTD + 0
using fuzzed_codec = cairn::zstd_codec;
fuzzed_codec new_codec() {
  return {};
}
const fuzzed_codec& the_codec() {
  static const fuzzed_codec codec;
  return codec;
}
#else
using fuzzed_codec = cairn_test::codec_archetype;
fuzzed_codec new_codec() {
  return fuzzed_codec::make();
}
const fuzzed_codec& the_codec() {
  static const fuzzed_codec codec = fuzzed_codec::make();
  return codec;
}
#endif
bytes encoded_by_codec(cairn::dtype type, input item) {
  bytes to(static_cast<std::size_t>(the_codec().bound(item.size())));
  to.resize(the_codec().encode(type, item, to));
  return to;
}
using compressed_objects = cairn::detail::compressed_store<fuzzed_codec>;
constexpr const char* data_file = "step-00000001/rank-00000.00c0ffee00c0ffee.0.safetensors";

/// What reading `count` bytes from `begin` of a data file gives, whether it is compressed or not.
std::optional<bytes> read_object(compressed_objects& store, std::uint64_t begin, std::size_t count) {
  return accepted<cairn::corrupt_error>([&] {
    bytes to(count);
    const cairn::read_range range{data_file, begin, to};
    store.read({&range, 1});
    return to;
  });
}
bytes compressed_object_of(input content, std::uint64_t frame_bytes) {
  const auto objects = std::make_shared<cairn::memory_store>();
  compressed_objects store(cairn::any_store(objects), new_codec(), {.frame_bytes = frame_bytes});
  auto writer = store.create(data_file, content.size());
  const cairn::write_range all{0, content};
  writer.write({&all, 1});
  writer.finish();
  return *objects->read_all(cairn::compressed_key(data_file), 1u << 30);
}
/// A whole compressed data file. `at` chooses what is read of it.
void read_compressed(input in, std::uint16_t at) {
  const auto objects = std::make_shared<cairn::memory_store>();
  objects->put_new(cairn::compressed_key(data_file), in);
  compressed_objects store(cairn::any_store(objects), new_codec(), {});
  const auto size = accepted<cairn::corrupt_error>([&] { return *store.size(data_file); });
  if (!size) return;
  // A file of 64 KiB may stand for far more, and a frame of it is decoded as a whole.
  if (*size > std::uint64_t{1} << 20) return;
  const auto first = read_object(store, 0, static_cast<std::size_t>(*size));
  const auto begin = std::min<std::uint64_t>(at, *size);
  const auto some =
      read_object(store, begin, static_cast<std::size_t>(std::min<std::uint64_t>(*size - begin, 5000)));
  demand(!read_object(store, *size, 1), "nothing is read behind the end of a compressed file");
  if (!first) return;
  demand(some && std::equal(some->begin(), some->end(), first->begin() + static_cast<std::ptrdiff_t>(begin)),
         "a part of a compressed file is what stands there in the whole");
  // Frames may be cut and encoded in other ways: what is compared is what they hold.
  const auto again = compressed_object_of(*first, 1u << 16);
  const auto others = std::make_shared<cairn::memory_store>();
  others->put_new(cairn::compressed_key(data_file), again);
  compressed_objects other(cairn::any_store(others), new_codec(), {});
  demand(read_object(other, 0, first->size()) == first,
         "what was read from a compressed file can be compressed");
}
/// The first byte chooses a dtype and what follows two bytes that are a size or a place: what is encoded, an
/// item that is, frames with their index, or a compressed data file.
void read_codec(input in) {
  if (in.size() < 3) return;
  const auto choice = std::to_integer<unsigned>(in[0]);
  const auto type = static_cast<cairn::dtype>(choice / 4 % 20);
  std::uint16_t size = 0;
  std::memcpy(&size, in.data() + 1, sizeof size);
  in = in.subspan(3);
  const auto decoded = [&](input from, std::size_t to_size) {
    return accepted<cairn::corrupt_error>([&] {
      bytes to(to_size);
      the_codec().decode(type, from, to);
      return to;
    });
  };
  if (choice % 4 == 0) {
    const auto item = decoded(in, size);
    if (item) demand(decoded(encoded_by_codec(type, *item), size) == item, "what was decoded can be encoded");
    return;
  }
  if (choice % 4 == 3) return read_compressed(in, size);
  if (choice % 4 == 1) {
    const auto again = decoded(encoded_by_codec(type, in), in.size());
    demand(again && std::ranges::equal(*again, in), "what was encoded is decoded");
    return;
  }
  const cairn::framed_item item{.codec = fuzzed_codec::id,
                                .type = type,
                                .decoded_bytes = std::uint64_t{size} * 37,
                                .encoded_bytes = in.size()};
  const auto index = accepted<cairn::corrupt_error>([&] { return cairn::frame_index::parse(in, item); });
  if (!index) return;
  const auto last = index->encode();
  demand(index->frames_end() + last.size() == in.size() && std::ranges::equal(last, in.last(last.size())),
         "an index of frames is written as it was read");
  static_cast<void>(accepted<cairn::corrupt_error>([&] {
    bytes to(std::size_t{size} * 20);
    const auto range = index->covering(size, to.size());
    cairn::decode_range(the_codec(), *index,
                        in.subspan(static_cast<std::size_t>(range.encoded_begin),
                                   static_cast<std::size_t>(range.encoded_bytes)),
                        size, to);
    return true;
  }));
}

#if CAIRN_USES_S3 + 0
/// An answer of an object store as it might come: status, headers up to an empty line, body.
void read_answer(unsigned kind, input in) {
  static const auto service = std::make_shared<cairn::detail::s3_service>(
      cairn::s3_options{.bucket = "bucket", .endpoint = "http://localhost", .region = "r"},
      cairn::s3_credential_source::fixed({"key", "secret-of-the-key", "", 0}),
      std::make_shared<cairn_test::quick_clock>());
  static cairn::detail::http_transport transport(
      {true, true, "", std::chrono::seconds(1), std::chrono::seconds(1), 4}, service->clock);
  if (in.size() < 2) return;
  std::vector<std::byte> wanted(16, std::byte{0xAA});
  cairn::detail::s3_request request{.method = "GET", .key = "k", .max_answer = 4096};
  switch (kind % 5) {
    case 0:
      request.root = "ListBucketResult";
      break;
    case 1:
      request.pieces = {{wanted.data(), 8}, {nullptr, 4}, {wanted.data() + 8, 4}};
      request.offset = 5, request.length = 16;
      break;
    case 2:
      request.method = "PUT", request.has_body = true;
      break;
    case 3:
      request.method = "POST", request.root = "CompleteMultipartUpload", request.completes = true;
      break;
    default:
      request.method = "HEAD";
  }
  cairn::detail::s3_call call(service, transport, request, std::make_shared<cairn::detail::call_group>());
  call.prepare();
  call.status = 100 + std::to_integer<int>(in[0]) * 2 + std::to_integer<int>(in[1]) % 2;
  call.end = cairn::detail::http_end::answered;
  auto rest = text_of(in.subspan(2));
  while (!rest.empty() && rest.front() != '\n') {
    const auto line = rest.substr(0, rest.find('\n'));
    const auto colon = line.find(':');
    if (colon != std::string_view::npos)
      call.answer_headers.emplace_back(cairn::detail::lower_case(line.substr(0, colon)),
                                       cairn::detail::canonical_value(line.substr(colon + 1)));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  if (!rest.empty()) rest.remove_prefix(1);
  const auto body = std::as_bytes(std::span(rest.data(), rest.size()));
  if (!body.empty() && !call.receive(body)) call.end = cairn::detail::http_end::refused;
  const auto pause = call.judge();
  demand(!pause || !call.fine(), "what is tried again was not fine");
  demand(!call.fine() || call.status / 100 == 2, "only a good status is fine");
  // Sixteen characters of it: fewer are a word that an answer may have by itself.
  demand(call.last_failure().find("secret-of-the-ke") == std::string::npos, "a failure tells no secret");
  demand(call.refusal().message.find("secret-of-the-key") == std::string::npos, "a refusal tells no secret");
  demand(wanted[12] == std::byte{0xAA} && wanted[15] == std::byte{0xAA},
         "nothing is written beside what was asked for");
  if (call.fine() && kind % 5 == 1) demand(body.size() == 16, "a range is whole");
}
/// The first byte chooses: a document, an address, a credentials file, encodings, or an answer.
void read_s3(input in) {
  if (in.empty()) return;
  const auto choice = std::to_integer<unsigned>(in[0]);
  in = in.subspan(1);
  const auto text = text_of(in);
  switch (choice % 8) {
    case 0: {
      const auto document =
          accepted<cairn::corrupt_error>([&] { return cairn::detail::xml_reader::read(text, "answer"); });
      if (document) demand(!document->name.empty(), "a document has a name");
      return;
    }
    case 1: {
      cairn::s3_options o{.bucket = "bucket", .endpoint = std::string(text), .region = "r"};
      const auto address = accepted<cairn::usage_error>([&] { return cairn::detail::resolve(o); });
      if (address)
        demand(cairn::detail::header_safe(address->authority) &&
                   address->authority.find('@') == std::string::npos &&
                   (address->base == "/bucket/" || address->authority.starts_with("bucket.")),
               "an address is a host and a bucket");
      return;
    }
    case 2: {
      cairn::s3_options o{.bucket = std::string(text.substr(0, text.find('\n'))),
                          .prefix = std::string(text.substr(std::min(text.size(), text.find('\n')))),
                          .endpoint = "https://localhost",
                          .region = "r"};
      static_cast<void>(accepted<cairn::usage_error>([&] { return cairn::detail::resolve(o); }));
      return;
    }
    case 3:
      static_cast<void>(cairn::s3_credential_source::in_profile(text, "default"));
      static_cast<void>(cairn::detail::credential_json::read(text));
      static_cast<void>(cairn::detail::is_allowed_endpoint(text));
      return;
    case 4: {
      std::string decoded;
      demand(cairn::detail::percent_decoded(cairn::detail::percent_encoded(text, choice / 8 % 2 != 0),
                                            decoded) &&
                 decoded == text,
             "what was encoded is decoded");
      static_cast<void>(cairn::detail::percent_decoded(text, decoded));
      cairn::wire_reader description(in);
      static_cast<void>(
          accepted<cairn::wire_error>([&] { return cairn::detail::decode_s3_options(description); }));
      return;
    }
    default:
      read_answer(choice / 8, in);
  }
}
#else
void read_s3(input) {}
#endif

/// The first byte chooses, and a number of ranks: what a save is made of on its way to a worker, what a
/// worker says of its work, how little it is to disturb, what ranks want of a checkpoint, or what was
/// gathered.
void read_job(input in) {
  if (in.empty()) return;
  const auto choice = std::to_integer<int>(in[0]);
  const int ranks = 1 + choice / 5;
  in = in.subspan(1);
  // `decode` reads a message of hostile bytes, `encode` writes what was read, again as a message of the same.
  // Chunks are compared as such: the same ones may be written as one pattern or as two.
  const auto stable = [&]<class Error>(Error*, auto decode, auto encode, auto same) {
    const auto read = accepted<Error>([&] { return decode(in); });
    if (!read) return;
    const bytes once = encode(*read);
    const auto again = accepted<Error>([&] { return decode(input(once)); });
    demand(again && same(*read, *again), "a message that was read is written as it was");
  };
  const auto same_chunks = [](const cairn::chunk_set& a, const cairn::chunk_set& b) {
    return a.size() == b.size() && (a.size() > 1 << 12 || a == b);
  };
  switch (choice % 5) {
    case 0: {
      struct job {
        cairn::save_context context;
        cairn::image_layout layout;
        cairn::metadata content;
        cairn::shared_place place;
      };
      return stable(
          static_cast<cairn::wire_error*>(nullptr),
          [](input from) {
            cairn::wire_reader reader(from);
            job j{cairn::decode_save_context(reader),
                  cairn::decode_image_layout(reader),
                  cairn::decode_metadata(reader),
                  {}};
            j.place = cairn::decode_shared_place(reader, j.layout.bytes);
            reader.finish();
            return j;
          },
          [](const job& j) {
            cairn::wire_writer out;
            cairn::encode(out, j.context);
            cairn::encode(out, j.layout);
            cairn::encode(out, j.content);
            cairn::encode(out, j.place);
            return out.take();
          },
          [&](const job& a, const job& b) {
            bool same =
                a.layout.bytes == b.layout.bytes && a.layout.segments.size() == b.layout.segments.size() &&
                a.layout.items.size() == b.layout.items.size() && a.place.offset == b.place.offset &&
                a.context.attempt == b.context.attempt && a.content.items.size() == b.content.items.size();
            for (std::size_t i = 0; same && i < a.content.items.size(); ++i) {
              const auto& x = a.content.items[i];
              const auto& y = b.content.items[i];
              same = x.name == y.name && x.type == y.type && x.global == y.global &&
                     same_chunks(x.chunks, y.chunks);
            }
            return same;
          });
    }
    case 1: {
      using share = std::pair<cairn::process_share, cairn::detail::vector<cairn::save_span>>;
      return stable(
          static_cast<cairn::wire_error*>(nullptr),
          [](input from) {
            cairn::wire_reader reader(from);
            share s;
            s.first = cairn::decode_share(reader, 7, s.second);
            reader.finish();
            return s;
          },
          [](const share& s) {
            cairn::wire_writer out;
            cairn::encode(out, s.first, s.second);
            return out.take();
          },
          [](const share& a, const share& b) {
            return a.first.bytes == b.first.bytes && a.first.seconds == b.first.seconds &&
                   a.second.size() == b.second.size();
          });
    }
    case 2:
      return stable(
          static_cast<cairn::error*>(nullptr),
          [](input from) {
            cairn::wire_reader reader(from);
            try {
              auto settings = cairn::detail::decode_worker_settings(reader);
              reader.finish();
              return settings;
            } catch (const cairn::wire_error&) {
              cairn::fail(cairn::error_id::peer_bad_message, "no settings");
            }
          },
          [](const cairn::worker_settings& s) {
            cairn::wire_writer out;
            cairn::detail::encode(out, s);
            return out.take();
          },
          [](const cairn::worker_settings& a, const cairn::worker_settings& b) {
            return a.nice == b.nice && a.io == b.io && a.io_level == b.io_level && a.cores == b.cores;
          });
    case 3:
      return stable(
          static_cast<cairn::peer_error*>(nullptr),
          [&](input from) { return cairn::detail::decode_wants(from, ranks); },
          [](const cairn::detail::wanted_items& wants) { return cairn::detail::encode_wants(wants); },
          [&](const cairn::detail::wanted_items& a, const cairn::detail::wanted_items& b) {
            return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
              return x.name == y.name && x.global == y.global && same_chunks(x.boxes, y.boxes);
            });
          });
    default: {
      const auto parts = accepted<cairn::peer_error>([&] { return cairn::detail::sort_labelled(in, ranks); });
      if (!parts) return;
      std::size_t total = 0;
      for (const auto& part : *parts) total += part.size();
      demand(total <= in.size(), "parts are no longer than what was gathered");
    }
  }
}

/// What peers say to each other over links: each is written again as it was read, byte for byte.
void read_link(input in) {
  using namespace cairn::detail;
  const auto same = [&](input again) { return std::equal(again.begin(), again.end(), in.begin(), in.end()); };
  if (const auto request = decode_request(in)) {
    demand(request_bytes(in.first(request_head_bytes)) == in.size(),
           "the head of a request tells its length");
    demand(in.size() <= max_request_bytes, "a request is short");
    demand(same(encode(*request)), "a request that was read is written as it was");
  }
  if (const auto answer = decode_answer(in))
    demand(same(encode(*answer)), "an answer that was read is written as it was");
  if (const auto address = decode_address(in))
    demand(same(encode(*address)), "an address that was read is written as it was");
  // And ranks over sockets.
  if (in.size() == socket_head_bytes)
    if (const auto head = decode_socket_head(in))
      demand(same(encode(*head)), "a head that was read is written as it was");
  if (const auto hello = decode_socket_hello(in))
    demand(same(encode(*hello)), "a hello that was read is written as it was");
  if (const auto answer = decode_socket_answer(in))
    demand(same(encode(*answer)), "an answer that was read is written as it was");
  if (const auto places = decode_socket_places(in))
    demand(same(encode(*places)), "places that were read are written as they were");
}

struct target {
  const char* name;
  void (*read)(input);
};
constexpr target targets[] = {
    {"manifest", read_manifest}, {"record", read_record}, {"safetensors", read_safetensors},
    {"files", read_files},       {"plan", read_plan},     {"frame", read_frame},
    {"config", read_config},     {"codec", read_codec},   {"s3", read_s3},
    {"job", read_job},           {"link", read_link}};
const target* chosen = nullptr;

// --- The first inputs
// -------------------------------------------------------------------------------------------

bytes with_first(std::uint8_t first, input rest) {
  bytes all{std::byte{first}};
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}
bytes pieces_of(const bytes& message, std::size_t each) {
  bytes ring;
  std::uint32_t sequence = 0;
  for (std::size_t at = 0; at < message.size(); at += each) {
    const auto part = input(message).subspan(at, std::min(each, message.size() - at));
    cairn::detail::piece_header h;
    h.flags = (at == 0 ? h.first : 0) | (at + part.size() == message.size() ? h.last : 0);
    h.bytes = static_cast<std::uint32_t>(part.size());
    h.sequence = sequence++;
    h.message_bytes = message.size();
    h.digest = cairn::detail::piece_digest(h, part);
    const auto header = std::as_bytes(std::span(&h, 1));
    ring.insert(ring.end(), header.begin(), header.end());
    ring.insert(ring.end(), part.begin(), part.end());
  }
  return ring;
}
void write_seeds(const std::string& root) {
  const auto put = [&](const char* of, const char* name, const bytes& content) {
    const auto directory = root + "/" + of;
    ::mkdir(root.c_str(), 0777);
    ::mkdir(directory.c_str(), 0777);
    std::FILE* file = std::fopen((directory + "/" + name).c_str(), "wb");
    demand(file != nullptr && std::fwrite(content.data(), 1, content.size(), file) == content.size() &&
               std::fclose(file) == 0,
           "a seed can be written");
  };
  cairn_test::dice d(7);
  put("manifest", "golden-2", cairn::encode_manifest(cairn_test::golden_manifest()));
  put("manifest", "golden-2.1", cairn::encode_manifest(cairn_test::golden_annotated_manifest()));
  for (const char* name : {"random-2.1", "random-2.2", "random-2.3"})
    put("manifest", name, cairn::encode_manifest(cairn_test::random_manifest(d)));
  put("record", "golden", cairn::encode_record(cairn_test::golden_record()));
  put("record", "random", cairn::encode_record(cairn_test::random_record(d)));
  cairn::record identity = cairn_test::golden_record();
  identity.files.clear(), identity.items.clear(), identity.blocks.clear();
  put("record", "failure", cairn::encode_failure_record(identity, cairn_test::golden_failure()));

  const auto put_s3 = [&](const char* name, unsigned choice, std::string_view text) {
    put("s3", name, with_first(static_cast<std::uint8_t>(choice), bytes_of(text)));
  };
  const std::string listing =
      "<?xml version=\"1.0\"?>\n<ListBucketResult "
      "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>true"
      "</IsTruncated><EncodingType>url</EncodingType><NextContinuationToken>a/b=</"
      "NextContinuationToken><Contents><Key>"
      "a%2Fb</Key><Size>7</Size><ETag>&quot;0f&quot;</ETag></Contents></ListBucketResult>";
  const std::string refusal =
      "<Error><Code>SlowDown</Code><Message>less, "
      "secret-of-the-key</Message><RequestId>1</RequestId></Error>";
  put_s3("listing", 0, listing);
  put_s3("entities", 0, "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>");
  put_s3("endpoint", 1, "https://example.com:443/");
  put_s3("names", 2, "a-bucket\na/prefix/");
  put_s3("profile", 3, "[default]\naws_access_key_id = a\naws_secret_access_key=b\n");
  put_s3(
      "credentials", 3,
      R"({"Code":"Success","AccessKeyId":"a","SecretAccessKey":"b","Token":"c","Expiration":"2033-05-18T03:33:20Z"})");
  put_s3("encoded", 4, "a%2Fb+c%");
  const auto status = [](int code) {
    return std::string{static_cast<char>((code - 100) / 2), static_cast<char>((code - 100) % 2)};
  };
  put_s3("answer-listing", 5, status(200) + "content-type: application/xml\n\n" + listing);
  put_s3("answer-range", 5 + 8,
         status(206) + "content-range: bytes 5-20/40\netag: \"a\"\n\n0123456789abcdef");
  put_s3("answer-put", 5 + 16, status(200) + "etag: \"a\"\n\n");
  put_s3("answer-refusal", 5 + 16, status(503) + "retry-after: 3\n\n" + refusal);
  put_s3("answer-completion", 5 + 24,
         status(200) + "\n  <CompleteMultipartUploadResult><ETag>a-2</ETag></CompleteMultipartUploadResult>");
  put_s3("answer-head", 5 + 32, status(200) + "etag: \"a\"\ncontent-length: 16\n\n");

  cairn::wire_writer sized;
  sized.put(std::uint64_t{43}).raw(cairn::encode_safetensors_header(cairn_test::golden_header(), 8));
  put("safetensors", "golden", sized.take());
  const std::string plain =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  cairn::wire_writer other;
  other.put(std::uint64_t{8}).put(std::uint64_t{plain.size()}).raw(bytes_of(plain));
  put("safetensors", "plain", other.take());

  // Two rows of a tensor in each of two files, a scalar, and an index that names both.
  const auto file_with = [&](std::string json, std::size_t data) {
    cairn::wire_writer file;
    file.put(std::uint64_t{json.size()}).raw(bytes_of(json)).raw(bytes(data, std::byte{7}));
    return file.take();
  };
  const auto half = [&](const char* offset, const char* more, std::size_t data) {
    return file_with(std::string(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":[)") +
                         offset + R"(,0]}}"},)" +
                         R"("w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]})" + more + "}",
                     data);
  };
  const auto first_half = half("0", "", 12);
  const auto second_half = half("2", "", 12);
  const auto plain_file = file_with(
      R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"U8","shape":[0,2],"data_offsets":[4,4]}})",
      4);
  const auto put_files = [&](const char* name, std::uint8_t choice, std::initializer_list<bytes> files) {
    bytes all{std::byte{choice}};
    for (const auto& f : files) {
      all.push_back(std::byte(f.size() % 256));
      all.push_back(std::byte(f.size() / 256));
      all.insert(all.end(), f.begin(), f.end());
    }
    put("files", name, all);
  };
  put_files("parts", 0, {{}, first_half, second_half, plain_file});
  put_files("index", 1,
            {bytes_of(R"({"metadata":{"total_size":4},"weight_map":{"s":"b.safetensors"}})"), plain_file,
             plain_file});
  std::vector<cairn::detail::foreign_header> headers;
  for (const auto* f : {&first_half, &second_half, &plain_file})
    headers.push_back({"f" + std::to_string(headers.size()), "k", f->size(),
                       bytes(f->begin(), f->end() - (f == &plain_file ? 4 : 12))});
  put("files", "headers", with_first(255, cairn::detail::encode_headers(headers, {}, {})));

  std::vector<float> values(24);
  std::string blob = "blob";
  double rate = 0;
  const auto describe = [&](int rank, std::uint8_t first, const char* name) {
    cairn::state_dict state;
    state.tensor("whole", values, {24});
    state.tensor("rows", values, cairn::shard{{8, 6}, {rank * 4, 0}, {4, 6}});
    state.tensor("flat", values, cairn::flat_shard{{6, 8}, rank * 24});
    state.value("rate", rate);
    state.bytes("generator", blob, cairn::per_rank);
    cairn::default_planner planner;
    const auto plan = planner.local_plan(state, rank);
    put("plan", name, with_first(first, planner.encode(planner.summarise(plan, rank))));
    if (rank != 0) return planner.summarise(plan, rank);
    cairn::wire_writer out;
    cairn::encode(out, plan);
    put("plan", "a-plan", with_first(1, out.view()));
    return planner.summarise(plan, rank);
  };
  cairn::default_planner planner;
  auto first = describe(0, 0, "rank-0");
  put("plan", "both",
      with_first(2, planner.encode(planner.merge(std::move(first), describe(1, 2, "rank-1")))));
  // Meshes of 16 ranks: a tensor in two dimensions, copies, a short last shard, empty ones, and no pattern.
  const auto mesh = [&](std::int64_t from, std::int64_t to) {
    cairn::plan_summary all;
    for (auto r = from; r < to; ++r) {
      cairn::state_dict state;
      state.tensor("copies", values.data(), cairn::shard{{8, 2}, {r % 4 * 2, 0}, {2, 2}});
      state.tensor("few", values.data(), cairn::shard{{8}, {std::min<std::int64_t>(r, 8)}, {r < 8 ? 1 : 0}});
      const std::int64_t cut = r * r;
      state.tensor("irregular", values.data(), cairn::shard{{256}, {cut}, {2 * r + 1}});
      state.tensor("mesh", values.data(), cairn::shard{{8, 12}, {r / 4 * 2, r % 4 * 3}, {2, 3}});
      state.tensor("short", values.data(), cairn::shard{{31}, {2 * r}, {r < 15 ? 2 : 1}});
      state.bytes("generator", blob, cairn::per_rank);
      all = planner.merge(std::move(all), planner.summarise(planner.local_plan(state, static_cast<int>(r)),
                                                            static_cast<int>(r)));
    }
    return all;
  };
  const auto lower = planner.encode(mesh(0, 6));
  bytes halves = with_first(16 + 2 * 5, bytes{std::byte(lower.size() % 256), std::byte(lower.size() / 256)});
  halves.insert(halves.end(), lower.begin(), lower.end());
  const auto higher = planner.encode(mesh(6, 16));
  halves.insert(halves.end(), higher.begin(), higher.end());
  put("plan", "mesh", with_first(2 * 5, planner.encode(mesh(0, 16))));
  put("plan", "mesh-in-two", halves);
  const auto chunks_of = [&](const char* name, const cairn::stored_item& item) {
    cairn::compact_writer out;
    out.number(static_cast<std::uint64_t>(item.global.rank()));
    for (const auto extent : item.global) out.number(extent);
    cairn::encode(out, item.chunks);
    put("plan", name, with_first(32 + 2 * 5, out.view()));
  };
  const auto described = planner.metadata(mesh(0, 16), 16);
  for (const auto& item : described.items)
    if (item.name == "mesh" || item.name == "irregular") chunks_of(("chunks-" + item.name).c_str(), item);

  using cairn::detail::collective_operation;
  using cairn::detail::collective_step;
  const cairn::detail::collective_call call{.epoch = 3,
                                            .operation = collective_operation::tree_reduce_broadcast};
  cairn::detail::outcome bad;
  const auto value = cairn::detail::encode_frame(call, collective_step::up, bad, bytes_of("a value"));
  bad.add_failure(1, cairn::encode_failure(cairn_test::golden_failure()));
  bad.add_absent(2, true);
  const auto failure = cairn::detail::encode_frame(call, collective_step::down, bad, {});
  put("frame", "value", with_first(8, value));
  put("frame", "failure", with_first(8, failure));
  put("frame", "pieces", with_first(9, pieces_of(failure, 50)));
  put("frame", "one-piece", with_first(9, pieces_of(value, 4096)));

  const auto key = [](const char* name, const char* text) { return std::pair(name, bytes_of(text)); };
  for (const auto& [name, content] :
       {key("step", "step-00001200"), key("manifest", "step-00001200/manifest.cairn"),
        key("record", "step-00001200/rank-00003.0123456789abcdef.record"),
        key("data", "step-00001200/rank-00003.0123456789abcdef.0.safetensors"),
        key("aborted", "step-00001200/aborted.0123456789abcdef"),
        key("part", "step-00001200/rank-00003.0123456789abcdef.0.safetensors.0123456789abcdef.part"),
        key("pattern", "model.*.w?\nmodel.layer.w1"), key("dtype", "BF16"), key("job", "job-1.a_b")})
    put("config", name, content);
  cairn::wire_writer options;
  options.put(std::uint64_t{65536})
      .put(std::uint64_t{65536})
      .put(std::uint64_t{0x0202})
      .raw(bytes_of("checkpoints"));
  put("config", "options", options.take());

  const auto put_job = [&](const char* name, unsigned choice, auto... parts) {
    cairn::wire_writer out;
    (encode(out, parts), ...);
    put("job", name, with_first(static_cast<std::uint8_t>(choice), out.view()));
  };
  cairn::image_layout layout;
  layout.bytes = 8192, layout.blocks = 1;
  layout.segments = {{0, 8192, bytes(16, std::byte{'h'})}};
  layout.items = {{0, 0, 4096, 100, 0, {1, 2}, false}};
  put_job("save", 5 * 3, cairn::save_context{.step = 300, .rank = 1, .world_size = 4}, layout,
          cairn_test::golden_manifest().content,
          cairn::shared_place{.id = 1, .bytes = 16384, .offset = 4096});
  cairn::wire_writer share;
  cairn::encode(share, cairn::process_share{}, cairn::detail::vector<cairn::save_span>(2));
  put("job", "share", with_first(1, share.view()));
  cairn::wire_writer settings;
  cairn::detail::encode(settings, cairn::worker_settings{.cores = {1, 2}});
  put("job", "settings", with_first(2, settings.view()));
  cairn::detail::wanted_items wants;
  for (const auto& item : described.items)
    if (item.kind == cairn::item_kind::tensor) wants.push_back({item.name, item.global, item.chunks});
  put("job", "wants", with_first(3 + 5 * 15, cairn::detail::encode_wants(wants)));
  bytes gathered;
  for (const int rank : {1, 0}) {
    const auto piece = cairn::detail::label_piece(rank, bytes_of("piece"));
    gathered.insert(gathered.end(), piece.begin(), piece.end());
  }
  put("job", "gathered", with_first(4 + 5, gathered));

  put("link", "fetch",
      cairn::detail::encode(cairn::detail::link_request{.what = cairn::detail::link_request::kind::fetch,
                                                        .plain_bulk = true,
                                                        .link = 7,
                                                        .offset = 4096,
                                                        .length = 1 << 20,
                                                        .key = {"image", 12}}));
  put("link", "hello", cairn::detail::encode(cairn::detail::link_request{.link = 7}));
  const auto answer = cairn::detail::encode(cairn::detail::link_answer{.bytes = 1 << 30});
  put("link", "answer", {answer.begin(), answer.end()});
  put("link", "address",
      cairn::detail::encode(cairn::detail::link_address{7, 40001, {"10.0.0.3", "fd00::3"}}));
  const auto head = cairn::detail::encode(cairn::detail::socket_frame{
      .what = cairn::detail::socket_frame::kind::lost, .left = true, .rank = 3, .bytes = 40});
  put("link", "socket_head", {head.begin(), head.end()});
  put("link", "socket_hello",
      cairn::detail::encode(cairn::detail::socket_hello{
          7, 3, 8, "train (run-7 node1 29400)", "node2", {9, 40002, {"10.0.0.4", "fd00::4"}}}));
  put("link", "socket_answer",
      cairn::detail::encode(cairn::detail::socket_answer{
          .what = cairn::detail::socket_answer::status::taken, .size = 8, .text = "rank 3 on node2"}));
  put("link", "socket_places",
      cairn::detail::encode(std::vector<cairn::detail::socket_place>{
          {"node1", {7, 40001, {"10.0.0.3"}}}, {"node2", {9, 40002, {"10.0.0.4", "fd00::4"}}}}));

  // Weights of two dtypes, and text; each as it is and encoded.
  const auto sized_item = [](unsigned choice, cairn::dtype type, std::size_t size, input rest) {
    cairn::wire_writer out;
    out.put(static_cast<std::uint8_t>(choice + 4 * static_cast<unsigned>(type)));
    return out.put(static_cast<std::uint16_t>(size)).raw(rest).take();
  };
  bytes item(1500);
  for (std::size_t i = 0; i + 4 <= item.size(); i += 4) {
    const float x = 0.01f * static_cast<float>(d.roll(2000) - 1000);
    std::memcpy(item.data() + i, &x, sizeof x);
  }
  bytes words;
  while (words.size() < 1500)
    words.push_back(static_cast<std::byte>("not at all or as a whole "[words.size() % 25]));
  for (const auto& [name, type, content] :
       {std::tuple("f32", cairn::dtype::f32, item), std::tuple("f64", cairn::dtype::f64, item),
        std::tuple("text", cairn::dtype::u8, words)}) {
    put("codec", name, sized_item(1, type, content.size(), content));
    put("codec", (std::string(name) + "-encoded").c_str(),
        sized_item(0, type, content.size(), encoded_by_codec(type, content)));
  }
  bytes framed;
  bytes longer(std::size_t{2000} * 37);
  std::copy(item.begin(), item.end(), longer.begin() + 65'000);
  cairn::encode_frames(the_codec(), cairn::dtype::f32, longer, {.frame_bytes = 1 << 16},
                       [&](input part) { framed.insert(framed.end(), part.begin(), part.end()); });
  put("codec", "frames", sized_item(2, cairn::dtype::f32, 2000, framed));
  // The golden file, and one with an item of two frames, a short one and an empty one.
  const auto file_of = [](const cairn::safetensors_header& header, std::initializer_list<input> data) {
    auto file = cairn::encode_safetensors_header(header, 64);
    for (const auto part : data) file.insert(file.end(), part.begin(), part.end());
    return compressed_object_of(file, 1u << 16);
  };
  put("codec", "file",
      sized_item(3, cairn::dtype::u8, 100,
                 file_of(cairn_test::golden_header(), {cairn_test::golden_data()})));
  cairn::safetensors_header three;
  three.entries = {{"long", cairn::dtype::f32, {18500}, 0, 74000, {}, {}, false},
                   {"none", cairn::dtype::f32, {0}, 74000, 74000, {}, {}, false},
                   {"words", cairn::dtype::u8, {1500}, 74000, 75500, {}, {}, false}};
  put("codec", "file-of-frames", sized_item(3, cairn::dtype::u8, 60'000, file_of(three, {longer, words})));
}

/// Puts the digests of frames and of their index right.
void seal_frames(bytes& content) {
  std::uint64_t frames = 0;
  if (content.size() < 3 + cairn::frame_index::trailer_bytes) return;
  std::memcpy(&frames, content.data() + content.size() - 16, sizeof frames);
  const std::size_t room = content.size() - 3 - cairn::frame_index::trailer_bytes;
  if (frames > room / 12) return;
  const auto index =
      content.size() - cairn::frame_index::trailer_bytes - static_cast<std::size_t>(frames) * 12;
  std::size_t at = 3;
  for (std::size_t i = 0; i < frames; ++i) {
    std::uint32_t length = 0;
    std::memcpy(&length, content.data() + index + 4 * i, sizeof length);
    if (length > index - at) break;
    const auto value = cairn::digest(input(content).subspan(at, length));
    std::memcpy(content.data() + index + 4 * frames + 8 * i, &value, sizeof value);
    at += length;
  }
  const auto value = cairn::digest(input(content).subspan(index, content.size() - index - 8));
  std::memcpy(content.data() + content.size() - 8, &value, sizeof value);
}
/// Puts the digests of a compressed file right: of its header, of the frames and the index of each item, of
/// its table and its end; and the size of the first item's frames, so that bytes that came or went change
/// that alone.
void seal_compressed(bytes& content) {
  const std::size_t begin = 3;
  const auto get = [&](std::size_t at) {
    std::uint64_t number = 0;
    std::memcpy(&number, content.data() + at, sizeof number);
    return number;
  };
  const auto put_digest = [&](std::size_t at, std::size_t from, std::size_t to) {
    const auto value = cairn::digest(input(content).subspan(from, to - from));
    std::memcpy(content.data() + at, &value, sizeof value);
  };
  if (content.size() < begin + cairn::detail::compressed_trailer_bytes) return;
  const auto trailer = content.size() - cairn::detail::compressed_trailer_bytes;
  const auto header = get(trailer + 16);
  const auto items = get(trailer + 32);
  if (header > trailer - begin || items > (trailer - begin - header) / 16) return;
  const auto table = trailer - static_cast<std::size_t>(items) * 16;
  std::uint64_t frames = begin + header;  // where those of an item begin
  std::uint64_t index = table;
  std::uint64_t known = 0;  // bytes of all but the first item's frames
  for (std::uint64_t i = 0; i < items; ++i) {
    const auto bytes_of_it = get(table + 16 * i);
    const auto bytes_of_index = get(table + 16 * i + 8);
    if (bytes_of_it > content.size() || bytes_of_index > index) return;
    known += (i == 0 ? 0 : bytes_of_it) + bytes_of_index;
    index -= bytes_of_index;
  }
  if (items != 0 && known <= table - frames) {
    const std::uint64_t rest = table - frames - known;
    std::memcpy(content.data() + table, &rest, sizeof rest);
  }
  for (std::uint64_t i = 0; i < items; ++i) {
    const auto end = frames + get(table + 16 * i);
    const auto index_end = index + get(table + 16 * i + 8);
    if (end > table || index_end > table) break;
    bytes item(3);  // as the target of frames has it
    const auto append = [&](std::uint64_t from, std::uint64_t to) {
      item.insert(item.end(), content.begin() + static_cast<std::ptrdiff_t>(from),
                  content.begin() + static_cast<std::ptrdiff_t>(to));
    };
    append(frames, end), append(index, index_end);
    seal_frames(item);
    std::copy(item.end() - static_cast<std::ptrdiff_t>(index_end - index), item.end(),
              content.begin() + static_cast<std::ptrdiff_t>(index));
    frames = end, index = index_end;
  }
  put_digest(trailer + 40, begin, begin + static_cast<std::size_t>(header));
  put_digest(trailer + 48, table, trailer);
  put_digest(trailer + 56, trailer, trailer + 56);
}
/// Puts the digests right, so that what lies behind them is read.
void seal(const char* name, bytes& content) {
  if (std::strcmp(name, "codec") == 0 && !content.empty()) {
    const auto choice = std::to_integer<unsigned>(content[0]) % 4;
    if (choice == 2) seal_frames(content);
    if (choice == 3) seal_compressed(content);
  }
  if (std::strcmp(name, "manifest") == 0 && content.size() >= 128) cairn_test::seal_manifest(content);
  if (std::strcmp(name, "record") == 0 && content.size() >= 128) cairn_test::seal_record(content);
  if (std::strcmp(name, "frame") != 0 || content.empty() || (std::to_integer<unsigned>(content[0]) & 1) == 0)
    return;
  cairn::detail::piece_header h;
  for (std::size_t at = 1; content.size() - at >= sizeof h;) {
    std::memcpy(&h, content.data() + at, sizeof h);
    const auto rest = input(content).subspan(at + sizeof h);
    if (h.bytes > rest.size()) return;
    h.digest = cairn::detail::piece_digest(h, rest.first(h.bytes));
    std::memcpy(content.data() + at, &h, sizeof h);
    at += sizeof h + h.bytes;
  }
}

// --- Memory. What the program holds while it reads an input, all allocations together: a limit on each alone
// would not see many of them, and what the fuzzer itself keeps does not count.

constexpr std::int64_t memory_limit = std::int64_t{64} << 20;
std::atomic<bool> counting{false};
std::atomic<std::int64_t> held{0};
void on_malloc(const volatile void*, std::size_t size) {
  if (!counting.load(std::memory_order_relaxed)) return;
  if (held.fetch_add(static_cast<std::int64_t>(size)) + static_cast<std::int64_t>(size) <= memory_limit)
    return;
  counting = false;
  demand(false, "64 KiB of input take no more than 64 MiB of memory");
}
void on_free(const volatile void* memory) {
  if (counting.load(std::memory_order_relaxed) && memory != nullptr)
    held -= static_cast<std::int64_t>(__sanitizer_get_allocated_size(memory));
}
/// Reads an input, in a copy of its own without room behind it, so that reading past its end is seen.
void read_input(const bytes& content) {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  demand(installed > 0, "memory can be counted");
  held = 0, counting = true;
  chosen->read(bytes(content));
  counting = false;
}

// --- The same inputs each time. What a fuzzer tries next hangs on what it saw of the program, and that on
// where memory lies: it is another run on every day.

bytes current;             // the input that is being read
std::string current_file;  // where it is written to if that fails
void write_current(const char* why) {
  const int file = ::open(current_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0 || ::write(file, current.data(), current.size()) < 0) return;
  for (const std::string_view part : {std::string_view(why), std::string_view(" Test unit written to "),
                                      std::string_view(current_file), std::string_view("\n")})
    static_cast<void>(!::write(2, part.data(), part.size()));
}
void on_death() {
  write_current("a sanitizer ended it;");
}
void on_signal(int number) {
  write_current(number == SIGALRM ? "it takes more than a minute;" : "it aborted;");
  ::_exit(1);
}

/// One change of what a fuzzer would make, too.
void change(bytes& content, const std::vector<bytes>& all, cairn_test::dice& d) {
  const auto place = [&](std::size_t below) {
    return static_cast<std::size_t>(d.roll(static_cast<std::int64_t>(std::max<std::size_t>(below, 1))));
  };
  const auto at = content.begin() + static_cast<std::ptrdiff_t>(place(content.size() + 1));
  const auto left = static_cast<std::size_t>(content.end() - at);
  const auto some = std::min(left, d.roll(3) == 0 ? place(left + 1) : 1 + place(16));
  switch (d.roll(8)) {
    case 0:
      if (left != 0) *at ^= static_cast<std::byte>(1u << d.roll(8));
      return;
    case 1:
      if (left != 0) *at = static_cast<std::byte>(d.roll(256));
      return;
    case 2: {  // a number that is likely to be wrong, or one that the content has
      const std::uint64_t odd[] = {0,          1,          0x7f,           0x80, 0xff,
                                   0x7fffffff, 0x80000000, content.size(), left, std::uint64_t{1} << 40,
                                   UINT64_MAX, INT64_MAX,  d.word(),       some, UINT64_MAX - some};
      const auto value = odd[place(std::size(odd))];
      if (left != 0)
        std::memcpy(&*at, &value, std::min<std::size_t>({std::size_t{1} << d.roll(4), left, sizeof value}));
      return;
    }
    case 3:
      content.erase(at, at + static_cast<std::ptrdiff_t>(some));
      return;
    case 4:
      content.resize(content.size() - left);
      return;
    case 5: {  // a digit or a letter
      constexpr std::string_view text = "0123456789-.eE{}[]\":,<>/&%\n a";
      if (left != 0) *at = static_cast<std::byte>(text[place(text.size())]);
      return;
    }
    default: {  // a part of this input or of another one, put between or over
      const auto& from = all[place(all.size())];
      const auto begin = place(from.size() + 1);
      const auto count = std::min(from.size() - begin, d.roll(3) == 0 ? place(4096) : 1 + place(16));
      const bytes part(from.begin() + static_cast<std::ptrdiff_t>(begin),
                       from.begin() + static_cast<std::ptrdiff_t>(begin + count));
      if (d.roll(2) == 0)
        content.insert(at, part.begin(), part.end());
      else
        std::copy_n(part.begin(), std::min(part.size(), left), at);
    }
  }
}

[[noreturn]] void run_fixed(const char* how_many) {
  const auto told = [](const char* name) {
    const char* text = std::getenv(name);
    demand(text != nullptr, name);
    return std::string(text);
  };
  const auto runs = std::strtoull(how_many, nullptr, 10);
  const auto seed = std::strtoull(told("CAIRN_FUZZ_SEED").c_str(), nullptr, 10);
  const auto directory = told("CAIRN_FUZZ_CORPUS");
  current_file = told("CAIRN_FUZZ_FAILED");
  std::vector<std::string> names;
  if (DIR* list = ::opendir(directory.c_str())) {
    while (const auto* entry = ::readdir(list))
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    ::closedir(list);
  }
  std::sort(names.begin(), names.end());
  std::vector<bytes> all;
  for (const auto& name : names) {
    std::ifstream file(directory + "/" + name, std::ios::binary);
    all.push_back(bytes_of(std::string((std::istreambuf_iterator<char>(file)), {})));
  }
  demand(!all.empty(), "there are inputs");
  __sanitizer_set_death_callback(on_death);
  std::signal(SIGABRT, on_signal);
  std::signal(SIGALRM, on_signal);
  const auto read = [] {
    ::alarm(60);
    read_input(current);
  };
  for (const auto& each : all) {
    current = each;
    read();
  }
  for (std::uint64_t i = 0; i < runs; ++i) {
    cairn_test::dice d(seed * 1'000'003 + i);
    current = all[static_cast<std::size_t>(d.roll(static_cast<std::int64_t>(all.size())))];
    for (auto changes = 1 + d.roll(d.roll(4) == 0 ? 12 : 3); changes > 0; --changes) change(current, all, d);
    if (current.size() > (1u << 16)) current.resize(1u << 16);
    if (d.roll(8) != 0) seal(chosen->name, current);  // wrong digests must be tried, too
    read();
  }
  std::fprintf(stderr, "stat::number_of_executed_units: %llu\n",
               static_cast<unsigned long long>(runs + all.size()));
  std::exit(0);  // which reports leaks
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* root = std::getenv("CAIRN_FUZZ_SEEDS")) {
    write_seeds(root);
    std::_Exit(0);
  }
  const char* wanted = std::getenv("CAIRN_FUZZ_TARGET");
  for (const auto& t : targets)
    if (wanted != nullptr && std::strcmp(t.name, wanted) == 0) chosen = &t;
  if (chosen == nullptr) {
    std::fprintf(stderr,
                 "CAIRN_FUZZ_TARGET must be one of: manifest record safetensors files plan frame config "
                 "codec s3 job link\n");
    std::_Exit(2);
  }
  if (const char* order = std::getenv("CAIRN_FUZZ_FIXED")) run_fixed(order);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  size = LLVMFuzzerMutate(data, size, most);
  if (seed % 8 == 0) return size;  // wrong digests must be tried, too
  auto* first = reinterpret_cast<std::byte*>(data);
  bytes content(first, first + size);
  seal(chosen->name, content);
  std::copy(content.begin(), content.end(), first);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  read_input(bytes(first, first + size));
  return 0;
}
