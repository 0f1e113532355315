// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/link_reader.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

struct link_reader::state {
  /// What is fetched ahead of a source.
  struct ahead {
    std::vector<std::byte> bytes;
    std::uint64_t begin = 0;
    std::size_t size = 0;  // 0: nothing
    bool wanted = false;   // the thread has it to do, or does it
    std::string failure = {};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> needed = {};  // ranges, ascending
  };
  using source = std::pair<std::int32_t, bool>;

  state(any_peer_link& to, options options) : link(to), how(std::move(options)) {}

  void fetch(const source& which, std::uint64_t begin, std::span<std::byte> out) {
    const fetch_range range{.offset = begin, .destination = out};
    static_cast<void>(link.fetch(how.ranks[static_cast<std::size_t>(which.first)],
                                 which.second ? how.piece : how.image, std::span(&range, 1),
                                 deadline::in(std::chrono::nanoseconds(how.timeout)).earlier(how.until)));
  }
  /// What is read after this of the source, at most a block.
  [[nodiscard]] static std::size_t next_bytes(const ahead& of, std::uint64_t begin) {
    for (const auto& [first, end] : of.needed)
      if (begin >= first && begin < end)
        return static_cast<std::size_t>(std::min(end - begin, digest_block_bytes));
    return 0;
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ended || !todo.empty(); });
      if (ended) return;
      const auto which = todo.front();
      todo.pop_front();
      auto& of = sources[which];
      const std::span<std::byte> out(of.bytes.data(), of.size);
      std::string why;
      lock.unlock();
      try {
        fetch(which, of.begin, out);
      } catch (const std::exception& e) {
        try {
          why = e.what();
        } catch (const std::bad_alloc&) {
        }
        if (why.empty()) why = "no memory";  // which needs none
      } catch (...) {
        why = "it is not said";
      }
      lock.lock();
      of.failure = std::move(why);
      if (of.failure.empty()) fetched += of.size;
      of.wanted = false;
      changed.notify_all();
    }
  }

  any_peer_link& link;
  const options how;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<source, ahead> sources;
  std::deque<source> todo;
  std::uint64_t fetched = 0;
  std::string failure;
  bool ended = false;
  bool has_thread = false;
  background_thread thread;
};

CAIRN_BODY link_reader::link_reader(any_peer_link& link, options how,
                                    std::span<const redundancy_strip> strips,
                                    std::span<const member_tables> tables)
    : state_(std::make_shared<state>(link, std::move(how))) {
  for (const auto& strip : strips)
    for (const auto& from : strip.sources) {
      const auto& of = tables[static_cast<std::size_t>(from.member)];
      const auto& table = from.piece ? of.piece : of.image;
      if (from.begin + strip.bytes > table.bytes()) continue;
      auto& needed = state_->sources[{from.member, from.piece}].needed;
      const auto begin = table.begin(table.block_at(from.begin));
      const auto end = table.end(table.block_at(from.begin + strip.bytes - 1));
      if (!needed.empty() && begin >= needed.back().first && begin <= needed.back().second)
        needed.back().second = std::max(needed.back().second, end);
      else
        needed.emplace_back(begin, end);
    }
  // Without a thread each block is fetched when it is asked for.
  state_->has_thread = state_->thread.start("cairn-pieces", [s = state_.get()] { s->run(); });
}
CAIRN_BODY link_reader::~link_reader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}
CAIRN_BODY const std::string& link_reader::failure() const noexcept {
  return state_->failure;
}
CAIRN_BODY std::uint64_t link_reader::fetched() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->fetched;
}

CAIRN_BODY bool link_reader::read(const member_range& from, std::span<std::byte> out) {
  auto& s = *state_;
  const state::source which{from.member, from.piece};
  std::unique_lock lock(s.mutex);
  auto& of = s.sources[which];
  s.changed.wait(lock, [&] { return !of.wanted; });
  if (!of.failure.empty()) {
    s.failure = of.failure;
    return false;
  }
  std::size_t there = 0;
  if (from.begin >= of.begin && from.begin < of.begin + of.size) {
    const auto skipped = static_cast<std::size_t>(from.begin - of.begin);
    there = std::min(out.size(), of.size - skipped);
    std::memcpy(out.data(), of.bytes.data() + skipped, there);
  }
  if (there < out.size()) {
    lock.unlock();
    try {
      s.fetch(which, from.begin + there, out.subspan(there));
    } catch (const std::exception& e) {
      s.failure = e.what();
      return false;
    }
    lock.lock();
    s.fetched += out.size() - there;
  }
  const auto next = from.begin + out.size();
  const auto bytes = s.has_thread && next >= of.begin + of.size ? state::next_bytes(of, next) : 0;
  if (bytes != 0) {
    of.bytes.resize(std::max(of.bytes.size(), bytes));
    of.begin = next;
    of.size = bytes;
    of.wanted = true;
    s.todo.push_back(which);
    s.changed.notify_all();
  }
  return true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
