// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_journal.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/vector.hpp>
#include <cairn/system/wire.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <mutex>

namespace cairn {
inline namespace v1 {

CAIRN_BODY const char* name_of(span_kind kind) noexcept {
  static constexpr std::array<const char*, 15> names{
      "plan",  "wait", "stage",  "before_update", "copy", "copy and hash", "save",      "wait for bytes",
      "write", "sync", "record", "commit",        "hash", "gather",        "remove old"};
  const auto number = static_cast<std::size_t>(kind);
  return number < names.size() ? names[number] : "unknown";
}

CAIRN_BODY void save_journal::append(const detail::vector<save_span>& spans) noexcept {
  for (const auto& span : spans) put(span);
}

CAIRN_BODY detail::vector<save_span> save_journal::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

CAIRN_BODY detail::vector<save_span> save_journal::take() {
  const std::lock_guard lock(mutex_);
  last_.fill(none);
  detail::vector<save_span> taken;
  taken.swap(spans_);
  return taken;
}

CAIRN_BODY void save_journal::put(const save_span& span) noexcept {
  const std::lock_guard lock(mutex_);
  auto& last = last_[static_cast<std::size_t>(span.kind)];
  if (last != none && span.process == spans_[last].process) {
    auto& before = spans_[last];
    if (spans_.size() >= many || (span.begin - before.end < at_once && span.end - before.begin < briefly)) {
      before.end = std::max(before.end, span.end);
      before.bytes += span.bytes;
      before.cpu = span.cpu;
      return;
    }
  }
  try {
    spans_.push_back(span);
    last = spans_.size() - 1;
  } catch (...) {
    // Out of memory for a part of a trace: the save is worth more.
  }
}

CAIRN_BODY span_note::span_note(save_journal* journal, span_kind kind, std::uint64_t bytes) noexcept
    : journal_(journal), kind_(kind), bytes_(bytes), begin_(journal != nullptr ? steady_now() : 0) {}

CAIRN_BODY span_note::~span_note() {
  if (journal_ != nullptr) journal_->add(kind_, begin_, steady_now(), bytes_);
}

CAIRN_BODY void encode(wire_writer& out, const detail::vector<save_span>& spans) {
  out.put(static_cast<std::uint64_t>(spans.size()));
  for (const auto& s : spans) out.put(s.kind).put(s.begin).put(s.end).put(s.bytes).put(s.cpu);
}

CAIRN_BODY detail::vector<save_span> decode_spans(wire_reader& in, std::int64_t process) {
  detail::vector<save_span> spans(in.get_count(33));
  for (auto& s : spans) {
    s.process = process;
    s.kind = in.get_enum(last_span_kind);
    s.begin = in.get<std::int64_t>(), s.end = in.get<std::int64_t>();
    s.bytes = in.get<std::uint64_t>(), s.cpu = in.get<std::int64_t>();
    if (s.begin < 0 || s.end < s.begin || s.cpu < 0) in.fail_here("a span of a save has impossible times");
  }
  return spans;
}

}  // namespace v1
}  // namespace cairn
