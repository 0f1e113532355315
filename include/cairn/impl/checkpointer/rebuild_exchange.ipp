// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/rebuild_exchange.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace cairn {
inline namespace v1 {
namespace detail {

[[nodiscard]] inline bool has_bit(std::span<const std::byte> bits, std::int32_t rank) {
  const auto at = static_cast<std::size_t>(rank);
  return (bits[at / 8] & (std::byte{1} << static_cast<int>(at % 8))) != std::byte{0};
}
inline void set_bit(std::span<std::byte> bits, std::int32_t rank) {
  const auto at = static_cast<std::size_t>(rank);
  bits[at / 8] |= std::byte{1} << static_cast<int>(at % 8);
}

CAIRN_BODY rebuild_exchange::rebuild_exchange(const surveyed_places& places, const surveyed_save& save,
                                              std::vector<task> tasks, image_rebuilder& rebuilder,
                                              std::string directory, collectives& group)
    : places_(places),
      save_(save),
      tasks_(std::move(tasks)),
      rebuilder_(rebuilder),
      directory_(std::move(directory)),
      group_(group) {
  using kind = rebuild_range::kind;
  for (const auto& t : tasks_)
    for (const auto& p : save.pieces)
      if (contains(p.ranks, t.lost))
        for (const auto member : p.ranks)
          for (const auto what : {kind::image, kind::piece})
            if (const auto server = server_of({.rank = member, .what = what}, t.by);
                !places_.are_together(server, t.by))
              pairs_.emplace_back(t.by, server);
  std::sort(pairs_.begin(), pairs_.end());
  pairs_.erase(std::unique(pairs_.begin(), pairs_.end()), pairs_.end());
  gone_.resize((static_cast<std::size_t>(group_.size()) + 7) / 8);
}

/// Who has it. A rank of the place that it belongs to by its number, so that many share the work.
CAIRN_BODY std::int32_t rebuild_exchange::server_of(const rebuild_range& r, std::int32_t asking) const {
  const auto* const p = places_.place_with(save_, [&](const surveyed_save& s) {
    const auto is = [&](const auto& each) { return each.rank == r.rank; };
    return r.what == rebuild_range::kind::image ? std::any_of(s.images.begin(), s.images.end(), is)
                                                : std::any_of(s.pieces.begin(), s.pieces.end(), is);
  });
  if (p == nullptr) return asking;  // it has not got it either
  return p->ranks[static_cast<std::size_t>(r.rank) % p->ranks.size()];
}
/// Whether `rank` asks `other` in this round.
CAIRN_BODY bool rebuild_exchange::asks(std::int32_t rank, std::int32_t other) const {
  return has_bit(active_, rank) && std::binary_search(pairs_.begin(), pairs_.end(), std::pair(rank, other));
}

template <class Work>
void rebuild_exchange::guarded(std::exception_ptr& into, const Work& work) {
  try {
    work();
  } catch (...) {
    if (into == nullptr) into = std::current_exception();
  }
}
/// Work for the images that this rank rebuilds: where the place fails, others may take them.
template <class Work>
void rebuild_exchange::in_own_place(const Work& work) {
  if (place_failure_ != nullptr) return;
  try {
    work();
  } catch (const peer_error& e) {
    // As a checkpoint that lacks a file: another one may load, while a peer that is gone ends the resume.
    fail(error_id::corrupt_missing_file, e.what(), {.rank = e.fields().rank});
  } catch (const storage_error&) {
    place_failure_ = std::current_exception();
    set_bit(gone_, group_.rank());
    rebuilds_.clear();  // what they have made so far goes
  }
}

CAIRN_BODY void rebuild_exchange::begin_rebuilds() {
  sources_ = rebuilder_.sources(directory_, save_);
  in_own_place([&] {
    for (const auto& t : tasks_)
      if (t.by == group_.rank()) rebuilds_.push_back(rebuilder_.begin(directory_, save_, t.lost));
  });
}
/// The next window of each image; holds those that are whole.
CAIRN_BODY std::vector<rebuild_exchange::window> rebuild_exchange::ask() {
  std::vector<window> windows;
  in_own_place([&] {
    for (std::size_t i = 0; i < rebuilds_.size(); ++i) {
      if (rebuilds_[i] == nullptr) continue;
      if (rebuilds_[i]->is_whole()) {
        auto notes = rebuilds_[i]->finish();
        rebuilds_[i].reset();
        notes_.insert(notes_.end(), std::make_move_iterator(notes.begin()),
                      std::make_move_iterator(notes.end()));
        continue;
      }
      window w{.rebuild = i,
               .ranges = rebuilds_[i]->next(max_window),
               .servers = {},
               .parts = {},
               .memory = {},
               .place = {}};
      if (w.ranges.empty()) continue;
      for (const auto& r : w.ranges) {
        const auto server = server_of(r, group_.rank());
        w.servers.push_back(places_.are_together(server, group_.rank()) ? group_.rank() : server);
      }
      w.parts.resize(w.ranges.size());
      w.place = rebuilds_[i]->place();
      windows.push_back(std::move(w));
    }
  });
  if (place_failure_ != nullptr) windows.clear();
  return windows;
}

/// All ranks learn who takes part in this round; false: nobody does any more.
CAIRN_BODY bool rebuild_exchange::go_on(const std::exception_ptr& failure, bool active, deadline until) {
  const auto either = [](std::vector<std::byte> left, std::vector<std::byte> right) {
    for (std::size_t i = 0; i < left.size() && i < right.size(); ++i) left[i] |= right[i];
    return left;
  };
  if (failure != nullptr) {
    static_cast<void>(group_.tree_reduce_broadcast(collective_input(failure), either, until));
    std::rethrow_exception(failure);
  }
  active_.assign(gone_.size(), std::byte{0});
  if (active) set_bit(active_, group_.rank());
  auto bits = active_;
  bits.insert(bits.end(), gone_.begin(), gone_.end());
  if (group_.size() > 1) bits = group_.tree_reduce_broadcast(std::move(bits), either, until);
  if (bits.size() != active_.size() + gone_.size())
    fail(error_id::peer_bad_message, "the messages of the ranks about images that are rebuilt are damaged");
  const auto middle = bits.begin() + static_cast<std::ptrdiff_t>(active_.size());
  active_.assign(bits.begin(), middle);
  gone_.assign(middle, bits.end());
  return std::any_of(active_.begin(), active_.end(), [](std::byte b) { return b != std::byte{0}; });
}

/// In an answer each range has its length, and this bit where it could not be read; then all of them their bytes.
inline constexpr std::uint64_t range_not_read = std::uint64_t{1} << 63;

CAIRN_BODY raw_bytes rebuild_exchange::memory(std::uint64_t bytes) {
  raw_bytes made;
  made.size = static_cast<std::size_t>(bytes);
  auto buffer = spares_.take(made.size);
  buffer.resize(made.size);
  made.data = spares_.share(std::move(buffer));
  return made;
}
/// Makes the answers to what other ranks asked.
CAIRN_BODY void rebuild_exchange::read_for_others(std::span<const std::byte> head) {
  for (auto& r : reading_) {
    std::vector<std::uint64_t> lengths;
    std::uint64_t total = 0;
    for (const auto& range : r.ranges) {
      lengths.push_back(sources_->bytes(range));
      total += lengths.back();
    }
    if (r.ranges.size() == 1) {
      wire_writer text;
      text.raw(head).put(r.ranges[0].bytes);
      r.answer = sources_->lend(r.ranges[0], text.take());
      if (r.answer.data != nullptr) continue;
    }
    const auto first = head.size() + lengths.size() * sizeof(std::uint64_t);
    auto answer = memory(first + total);
    const std::span<std::byte> all(answer.data.get(), answer.size);
    std::copy(head.begin(), head.end(), all.begin());
    auto at = first;
    wire_writer table;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto out = all.subspan(at, static_cast<std::size_t>(lengths[i]));
      at += out.size();
      const bool good = sources_->read(r.ranges[i], out);
      if (!good) std::fill(out.begin(), out.end(), std::byte{0});  // not what was in that memory before
      table.put(good ? lengths[i] : lengths[i] | range_not_read);
    }
    const auto bytes = table.take();
    std::copy(bytes.begin(), bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(head.size()));
    r.answer = answer.message();
  }
}
/// The answer of a rank that cannot read.
CAIRN_BODY void rebuild_exchange::refuse(request& r, std::span<const std::byte> head) {
  wire_writer text;
  text.raw(head);
  for (std::size_t i = 0; i < r.ranges.size(); ++i) text.put(range_not_read);
  const auto bytes = text.take();
  raw_bytes answer(bytes.size());
  std::copy(bytes.begin(), bytes.end(), answer.data.get());
  r.answer = answer.message();
}
/// Reads what this place has of its own windows.
CAIRN_BODY void rebuild_exchange::read_here() {
  for (auto& w : read_)
    for (std::size_t i = 0; i < w.ranges.size(); ++i) {
      if (w.servers[i] != group_.rank()) continue;
      const auto bytes = memory(sources_->bytes(w.ranges[i]));
      const std::span<std::byte> out(bytes.data.get(), bytes.size);
      if (!sources_->read(w.ranges[i], out)) continue;
      w.parts[i] = out;
      w.memory.push_back(bytes.message());
    }
}
CAIRN_BODY void rebuild_exchange::compute() {
  in_own_place([&] {
    for (auto& w : computed_)
      if (rebuilds_[w.rebuild] != nullptr) rebuilds_[w.rebuild]->take(w.parts);
  });
  computed_.clear();
}

/// A rank that asks sends a list, which may be empty, to each that may have something.
CAIRN_BODY void rebuild_exchange::send_requests(std::span<const std::byte> head, std::exception_ptr& failure,
                                                deadline until) {
  const auto own = group_.rank();
  const auto size = group_.size();
  for (std::int32_t s = 1; s < size; ++s) {
    if (const auto to = (own + s) % size; asks(own, to))
      guarded(failure, [&] {
        wire_writer text;
        text.raw(head);
        for (const auto& w : asked_)
          for (std::size_t i = 0; i < w.ranges.size(); ++i)
            if (const auto& r = w.ranges[i]; w.servers[i] == to)
              text.put(r.rank).put(r.what).put(r.begin).put(r.bytes);
        const auto bytes = text.take();
        raw_bytes message(bytes.size());
        std::copy(bytes.begin(), bytes.end(), message.data.get());
        group_.send_message(to, message.message(), until);
      });
    if (const auto from = (own - s + size) % size; asks(from, own))
      guarded(failure, [&] {
        const auto message = group_.take_message(from, until);
        try {
          wire_reader in(message.view().subspan(head.size()));
          request r{.from = from, .ranges = {}, .answer = {}};
          while (in.left() != 0) {
            rebuild_range range;
            range.rank = in.get<std::int32_t>();
            range.what = in.get_enum(rebuild_range::kind::record);
            range.begin = in.get<std::uint64_t>(), range.bytes = in.get<std::uint64_t>();
            r.ranges.push_back(range);
          }
          if (!r.ranges.empty()) taken_.push_back(std::move(r));
        } catch (const wire_error&) {
          fail(error_id::peer_bad_message, "what a rank asks of an image arrived damaged", {.rank = from});
        }
      });
  }
}
/// Who was asked two rounds ago answers.
CAIRN_BODY void rebuild_exchange::send_answers(std::span<const std::byte> head, std::exception_ptr& failure,
                                               deadline until) {
  const auto own = group_.rank();
  const auto size = group_.size();
  for (std::int32_t s = 1; s < size; ++s) {
    for (const auto& r : answered_)
      if (r.from == (own + s) % size) guarded(failure, [&] { group_.send_message(r.from, r.answer, until); });
    const auto from = (own - s + size) % size;
    if (std::any_of(arriving_.begin(), arriving_.end(),
                    [&](const window& w) { return contains(w.servers, from); }))
      guarded(failure, [&] { take_answers(from, head.size(), until); });
  }
  answered_.clear();
}
CAIRN_BODY void rebuild_exchange::take_answers(std::int32_t from, std::size_t head, deadline until) {
  std::size_t count = 0;
  const window* placed = nullptr;
  for (const auto& w : arriving_) {
    const auto of_window = std::count(w.servers.begin(), w.servers.end(), from);
    count += static_cast<std::size_t>(of_window);
    if (of_window != 0) placed = w.place != nullptr ? &w : nullptr;
  }
  // One range alone may come where it belongs.
  std::span<std::byte> place;
  if (count == 1 && placed != nullptr)
    place = {placed->place.get(), static_cast<std::size_t>(placed->ranges[0].bytes)};
  bool landed = false;
  const auto message = group_.take_message(from, head + sizeof(std::uint64_t), place, landed, until);
  try {
    const auto bytes = message.view().subspan(head);
    wire_reader in(bytes);
    std::vector<std::uint64_t> lengths;
    for (std::size_t i = 0; i < count; ++i) lengths.push_back(in.get<std::uint64_t>());
    auto length = lengths.begin();
    for (auto& w : arriving_)
      for (std::size_t i = 0; i < w.ranges.size(); ++i) {
        if (w.servers[i] != from) continue;
        const auto size = static_cast<std::size_t>(*length & ~range_not_read);
        if (landed && size != place.size()) in.fail_here("a range has another length");
        const auto part = landed ? place : in.take(size);
        if ((*length & range_not_read) == 0) w.parts[i] = part;
        ++length;
      }
    in.finish();
  } catch (const wire_error&) {
    fail(error_id::peer_bad_message, "the bytes that a rank sent of an image arrived damaged",
         {.rank = from});
  }
  for (auto& w : arriving_)
    if (contains(w.servers, from)) w.memory.push_back(message);
}

CAIRN_BODY void rebuild_exchange::run(deadline until) {
  std::exception_ptr failure;
  guarded(failure, [&] { begin_rebuilds(); });
  // One for all windows: an answer is made in the round before it is sent.
  group_.begin_exchange();
  const auto head = group_.message_head();
  for (;;) {
    if (failure == nullptr) guarded(failure, [&] { asked_ = ask(); });
    const bool active = !asked_.empty() || !read_.empty() || !arriving_.empty() || !computed_.empty();
    if (!go_on(failure, active, until)) break;
    std::exception_ptr not_read_here;
    std::exception_ptr not_computed;
    {
      const auto read = [&] {
        guarded(not_read_here, [&] { read_for_others(head), read_here(); });
        // Who asked waits for an answer; that this rank fails it hears with the next word of all.
        for (auto& r : reading_)
          if (r.answer.data == nullptr) guarded(not_read_here, [&] { refuse(r, head); });
      };
      const auto work = [&] { guarded(not_computed, [&] { compute(); }); };
      background_thread reading, computing;
      const bool reads = (!reading_.empty() || !read_.empty());
      const bool computes = !computed_.empty();
      // A rank without memory for a thread tells the others, as all that fails here.
      bool reads_beside = false, computes_beside = false;
      guarded(failure, [&] { reads_beside = reads && reading.start("cairn read", read); });
      guarded(failure, [&] { computes_beside = computes && computing.start("cairn rebuild", work); });
      guarded(failure, [&] { send_requests(head, failure, until), send_answers(head, failure, until); });
      if (reads && !reads_beside) read();
      if (computes && !computes_beside) work();
    }
    for (const auto& why : {not_read_here, not_computed})
      if (failure == nullptr) failure = why;
    computed_ = std::move(arriving_);
    arriving_ = std::move(read_);
    read_ = std::move(asked_);
    answered_ = std::move(reading_);
    reading_ = std::move(taken_);
    asked_.clear(), taken_.clear();
  }
  for (std::int32_t rank = 0; rank < group_.size(); ++rank)
    if (has_bit(gone_, rank)) failed_.push_back(rank);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
