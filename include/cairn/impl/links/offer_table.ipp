// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/links/offer_table.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/sorted_map.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

struct offer_reading::shared_offer {
  std::vector<std::span<const std::byte>> parts;
  std::vector<std::uint64_t> begins;  // of each part within the offer
  std::uint64_t size = 0;
  // Below: under the table's mutex.
  std::size_t readers = 0;    // that have begun and not ended
  std::size_t in_memory = 0;  // of these, in use() now
  bool withdrawn = false;     // no reader begins
  bool cut = false;           // no reader goes on
};

struct key_order {
  bool operator()(const offer_key& a, const offer_key& b) const noexcept {
    const auto names = a.name.compare(b.name);
    return names != 0 ? names < 0 : a.generation < b.generation;
  }
};

struct offer_table::inside {
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  sorted_map<offer_key, std::shared_ptr<offer_reading::shared_offer>, key_order> offers;
  std::uint64_t wakes = 0;
  bool closed = false;

  /// Waits on `changed` until `done`; false at the deadline.
  template <class Done>
  bool wait(std::unique_lock<std::mutex>& lock, deadline until, Done done) const {
    if (until.time_point() != deadline::clock::time_point::max())
      return changed.wait_until(lock, until.time_point(), done);
    changed.wait(lock, done);
    return true;
  }
};

CAIRN_BODY offer_reading::offer_reading(offer_table& table, std::shared_ptr<shared_offer> what) noexcept
    : table_(&table), what_(std::move(what)) {}
CAIRN_BODY offer_reading::offer_reading(offer_reading&& other) noexcept
    : table_(other.table_), what_(std::exchange(other.what_, nullptr)) {}
CAIRN_BODY offer_reading& offer_reading::operator=(offer_reading&& other) noexcept {
  if (this != &other) {
    end();
    table_ = other.table_;
    what_ = std::exchange(other.what_, nullptr);
  }
  return *this;
}
CAIRN_BODY offer_reading::~offer_reading() {
  end();
}

CAIRN_BODY void offer_reading::end() noexcept {
  if (what_ == nullptr) return;
  auto& in = *table_->in_;
  const std::lock_guard lock(in.mutex);
  if (--what_->readers == 0 && what_->withdrawn) in.changed.notify_all();
  what_ = nullptr;
}

CAIRN_BODY std::uint64_t offer_reading::size() const noexcept {
  return what_->size;
}

CAIRN_BODY bool offer_reading::read(std::uint64_t offset, std::size_t limit,
                                    function_ref<void(std::span<const std::byte>)> use) {
  auto& in = *table_->in_;
  {
    const std::lock_guard lock(in.mutex);
    if (what_->cut) return false;
    ++what_->in_memory;
  }
  struct leaving {
    offer_table::inside& table;
    shared_offer& offer;
    ~leaving() {
      const std::lock_guard lock(table.mutex);
      if (--offer.in_memory == 0 && offer.cut) table.changed.notify_all();
    }
  } const left{in, *what_};
  // Only parts that have bytes are in the lists, so that the last one that begins no later has the byte.
  const auto after = std::upper_bound(what_->begins.begin(), what_->begins.end(), offset);
  const auto part = static_cast<std::size_t>(after - what_->begins.begin()) - 1;
  const auto bytes = what_->parts[part].subspan(static_cast<std::size_t>(offset - what_->begins[part]));
  use(bytes.first(std::min(limit, bytes.size())));
  return true;
}

CAIRN_BODY offer_table::offer_table() : in_(detail::make_owned<inside>()) {}
CAIRN_BODY offer_table::~offer_table() = default;

CAIRN_BODY void offer_table::add(const offer_key& key, std::span<const std::span<const std::byte>> parts) {
  check(key);
  auto made = detail::make_shared<offer_reading::shared_offer>();
  for (const auto& part : parts) {
    if (part.empty()) continue;
    made->begins.push_back(made->size);
    made->parts.push_back(part);
    made->size += part.size();
  }
  const std::lock_guard lock(in_->mutex);
  if (in_->closed) fail(error_id::peer_lost, "this rank left its peers and offers nothing any more");
  if (!in_->offers.try_emplace(key, std::move(made)).second)
    fail(error_id::usage_duplicate_name,
         "this rank offers the key already; withdraw it before it is offered again",
         {.item = key.name, .got = "generation " + std::to_string(key.generation)});
  in_->changed.notify_all();
}

CAIRN_BODY void offer_table::withdraw(const offer_key& key, deadline until) noexcept {
  std::unique_lock lock(in_->mutex);
  const auto at = in_->offers.find(key);
  if (at == in_->offers.end()) return;
  const auto offer = at->second;
  offer->withdrawn = true;
  // At a deadline that has passed nobody is given time.
  static_cast<void>(in_->wait(lock, until, [&] { return offer->readers == 0; }));
  offer->cut = true;
  in_->changed.notify_all();
  in_->changed.wait(lock, [&] { return offer->in_memory == 0; });
  // Two that withdraw the same key: it may have been offered anew since.
  const auto still = in_->offers.find(key);
  if (still != in_->offers.end() && still->second == offer) in_->offers.erase(still);
}

CAIRN_BODY void offer_table::close() noexcept {
  std::unique_lock lock(in_->mutex);
  in_->closed = true;
  for (auto& each : in_->offers) each.second->withdrawn = each.second->cut = true;
  in_->changed.notify_all();
  in_->changed.wait(lock, [&] {
    for (const auto& each : in_->offers)
      if (each.second->in_memory != 0) return false;
    return true;
  });
  in_->offers.clear();
}

CAIRN_BODY void offer_table::open() noexcept {
  const std::lock_guard lock(in_->mutex);
  in_->closed = false;
}

CAIRN_BODY std::optional<offer_reading> offer_table::begin(const offer_key& key) {
  const std::lock_guard lock(in_->mutex);
  const auto at = in_->offers.find(key);
  if (at == in_->offers.end() || at->second->withdrawn) return std::nullopt;
  ++at->second->readers;
  return offer_reading(*this, at->second);
}

CAIRN_BODY std::optional<std::uint64_t> offer_table::size_of(const offer_key& key) const {
  const std::lock_guard lock(in_->mutex);
  const auto at = std::as_const(in_->offers).find(key);
  if (at == std::as_const(in_->offers).end() || at->second->withdrawn) return std::nullopt;
  return at->second->size;
}

CAIRN_BODY bool offer_table::wait(const offer_key& key, std::uint64_t seen_wakes, deadline until) const {
  std::unique_lock lock(in_->mutex);
  return in_->wait(lock, until, [&] {
    const auto at = in_->offers.find(key);
    return in_->closed || in_->wakes != seen_wakes || (at != in_->offers.end() && !at->second->withdrawn);
  });
}

CAIRN_BODY std::uint64_t offer_table::wakes() const noexcept {
  const std::lock_guard lock(in_->mutex);
  return in_->wakes;
}

CAIRN_BODY void offer_table::wake() noexcept {
  const std::lock_guard lock(in_->mutex);
  ++in_->wakes;
  in_->changed.notify_all();
}

CAIRN_BODY void check(const offer_key& key) {
  if (key.name.empty() || key.name.size() > max_offer_name)
    fail(error_id::usage_bad_name, "the name of an offer has 1 to 255 bytes",
         {.item = key.name.substr(0, max_offer_name), .got = std::to_string(key.name.size()) + " bytes"});
}

CAIRN_BODY void check_peer(int peer, int size) {
  if (peer < 0 || peer >= size)
    fail(error_id::usage_bad_option, "there is no such rank",
         {.expected = "0 to " + std::to_string(size - 1), .got = std::to_string(peer)});
}

CAIRN_BODY void check_range(const fetch_range& range, std::uint64_t size, int peer, const offer_key& key) {
  if (range.offset <= size && range.destination.size() <= size - range.offset) return;
  fail(error_id::usage_bad_option, "a range that is to be fetched does not lie within what the peer offers",
       {.rank = peer,
        .item = key.name,
        .offset = static_cast<std::int64_t>(range.offset),
        .expected = "at most " + std::to_string(size) + " bytes in all",
        .got = std::to_string(range.destination.size()) + " bytes from this offset on"});
}

CAIRN_BODY void fail_not_offered(int peer, const offer_key& key) {
  fail(error_id::peer_not_offered, "the peer does not offer what is fetched, or has withdrawn it meanwhile",
       {.rank = peer, .item = key.name, .got = "generation " + std::to_string(key.generation)});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
