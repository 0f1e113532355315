// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/storage/compressed/compressed_file.hpp>
#include <cairn/storage/compressed/item_frames.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/parallel.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An object writer that takes the bytes of a safetensors file, from front to back, and gives a compressed
/// file to another one. Memory: two frames and their encoded forms for each thread, and a buffer of 4 MiB or
/// what the store likes to get at once. Encodes in write(), on `threads` threads.
template <class C>
class compressed_object {
 public:
  /// `bytes`: of the safetensors file, exactly. `unit`: the io_alignment() of the store; `least`: its
  /// min_write_bytes(). The codec outlives the object.
  compressed_object(any_store::object_writer inner, const C& codec, const frame_options& options,
                    std::string key, std::uint64_t bytes, std::uint64_t unit, std::uint64_t least)
      : inner_(std::move(inner)), codec_(&codec), options_(options), key_(std::move(key)), bytes_(bytes) {
    const auto wanted = std::max(least, std::uint64_t{4} << 20);
    buffer_ = large_buffer(static_cast<std::size_t>((wanted + unit - 1) / unit * unit));
  }

  void write(std::span<const write_range> parts) {
    if (broken_)
      fail(error_id::usage_closed, "a compressed object is written after an error", {.file = key_});
    broken_ = true;  // until all went well
    for (const auto& part : parts) {
      if (part.offset != taken_)
        fail(error_id::usage_wrong_order, "a compressed object is written from front to back",
             {.file = key_, .expected = std::to_string(taken_), .got = std::to_string(part.offset)});
      if (part.bytes.size() > bytes_ - taken_)
        fail(error_id::usage_overflow, "a compressed object gets more bytes than were announced",
             {.file = key_, .expected = std::to_string(bytes_)});
      take(part.bytes);
      taken_ += part.bytes.size();
    }
    encode_tasks();
    broken_ = false;
  }

  void finish() {
    if (broken_)
      fail(error_id::usage_closed, "a compressed object is finished after an error", {.file = key_});
    broken_ = true;
    if (taken_ != bytes_ || entries_.size() != next_)
      fail(error_id::usage_incomplete_object, "not all bytes of a compressed object were written",
           {.file = key_, .expected = std::to_string(bytes_), .got = std::to_string(taken_)});
    wire_writer table;
    for (const auto& index : indices_) {
      const auto stored = index.encode();
      put(stored);
      table.put(index.frames_end()).put(static_cast<std::uint64_t>(stored.size()));
    }
    put(table.view());
    compressed_trailer t;
    t.header_bytes = header_.size(), t.decoded_bytes = bytes_, t.items = entries_.size();
    t.header_digest = digest(header_), t.table_digest = digest(table.view());
    put(encode_compressed_trailer(t, C::id));
    flush();
    inner_.finish();
  }

  /// See DeadlineObjectWriter.
  void until(deadline when) { inner_.until(when); }
  /// What the store below shows to others is the compressed file.
  void announce() { inner_.announce(); }
  [[nodiscard]] bool announced() const noexcept { return inner_.announced(); }
  [[nodiscard]] int lock_descriptor() const { return inner_.lock_descriptor(); }
  /// Processor time of threads besides the calling one, in nanoseconds.
  [[nodiscard]] std::int64_t helper_cpu() const { return helper_cpu_ + inner_.helper_cpu(); }

 private:
  struct task {
    std::span<const std::byte> bytes;
    std::size_t entry;
  };
  struct encoded {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t room = 0;
    std::size_t size = 0;
  };

  void take(std::span<const std::byte> bytes) {
    if (!header_complete_) take_header(bytes);
    while (!bytes.empty()) {
      const auto& entry = entries_[next_];
      const auto left_of_item = entry.end - entry.begin - in_item_;
      const auto left_of_frame = std::min<std::uint64_t>(options_.frame_bytes - carry_.size(), left_of_item);
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left_of_frame, bytes.size()));
      const auto piece = bytes.first(count);
      bytes = bytes.subspan(count);
      in_item_ += count;
      if (carry_.empty() && count == left_of_frame) {
        tasks_.push_back({piece, next_});
      } else {
        carry_.insert(carry_.end(), piece.begin(), piece.end());
        if (count == left_of_frame) {
          carried_.push_back(std::exchange(carry_, {}));
          tasks_.push_back({carried_.back(), next_});
        }
      }
      if (in_item_ == entry.end - entry.begin) next_item();
    }
  }
  /// Takes what belongs to the header off the front of `bytes`.
  void take_header(std::span<const std::byte>& bytes) {
    const auto add = [&](std::uint64_t until) {
      const auto count =
          static_cast<std::size_t>(std::min<std::uint64_t>(until - header_.size(), bytes.size()));
      header_.insert(header_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
      bytes = bytes.subspan(count);
    };
    if (header_.size() < 8) add(8);
    if (header_.size() < 8) return;
    const auto length = safetensors_header_bytes(std::span<const std::byte>(header_).first(8), bytes_, key_);
    add(length);
    if (header_.size() < length) return;
    auto parsed = decode_safetensors_header(header_, bytes_, key_);
    header_complete_ = true;
    entries_ = std::move(parsed.entries);
    put(header_);
    in_item_ = 0;
    begin_item();
  }
  /// The next one that is not empty; those before it are complete.
  void begin_item() {
    for (; next_ < entries_.size(); ++next_) {
      const auto& entry = entries_[next_];
      indices_.emplace_back(C::id, entry.type, entry.end - entry.begin, options_.frame_bytes);
      if (entry.begin != entry.end) return;
    }
  }
  void next_item() {
    in_item_ = 0;
    ++next_;
    begin_item();
  }

  void encode_tasks() {
    const auto threads = std::max<std::size_t>(options_.threads, 1);
    const std::size_t max_batch = threads == 1 ? 1 : 8 * threads;
    for (std::size_t done = 0; done < tasks_.size();) {
      const auto count = std::min(max_batch, tasks_.size() - done);
      if (places_.size() < count) places_.resize(count);
      std::atomic<std::int64_t> cpu{0};
      parallel_for(count, threads, [&](std::size_t i, std::size_t thread) {
        const auto before = thread == 0 ? 0 : thread_cpu_now();
        const auto& from = tasks_[done + i];
        auto& to = places_[i];
        const auto room = static_cast<std::size_t>(codec_->bound(from.bytes.size()));
        if (to.room < room) {
          to.bytes = std::make_unique_for_overwrite<std::byte[]>(room);
          to.room = room;
        }
        to.size = codec_->encode(entries_[from.entry].type, from.bytes, {to.bytes.get(), to.room});
        if (thread != 0) cpu.fetch_add(thread_cpu_now() - before, std::memory_order_relaxed);
      });
      helper_cpu_ += cpu.load();
      for (std::size_t i = 0; i < count; ++i) {
        const std::span<const std::byte> frame(places_[i].bytes.get(), places_[i].size);
        indices_[tasks_[done + i].entry].add(frame);
        put(frame);
      }
      done += count;
    }
    tasks_.clear();
    carried_.clear();
  }

  /// Through a buffer, so that the store gets what it likes.
  void put(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto count = std::min(bytes.size(), buffer_.size() - buffered_);
      std::memcpy(buffer_.data() + buffered_, bytes.data(), count);
      buffered_ += count;
      bytes = bytes.subspan(count);
      if (buffered_ == buffer_.size()) flush();
    }
  }
  void flush() {
    if (buffered_ == 0) return;
    const write_range part{written_, {buffer_.data(), buffered_}};
    inner_.write({&part, 1});
    written_ += std::exchange(buffered_, 0);
  }

  any_store::object_writer inner_;
  const C* codec_;
  frame_options options_;
  std::string key_;
  std::uint64_t bytes_;      ///< of the safetensors file
  std::uint64_t taken_ = 0;  ///< of it
  std::uint64_t written_ = 0;
  std::vector<std::byte> header_;
  bool header_complete_ = false;
  bool broken_ = false;
  std::vector<safetensors_entry> entries_;
  std::vector<frame_index> indices_;  ///< of the entries that began
  std::size_t next_ = 0;              ///< the entry whose bytes come next
  std::uint64_t in_item_ = 0;         ///< of its bytes, how many came
  std::vector<std::byte> carry_;      ///< a frame that began
  std::vector<std::vector<std::byte>> carried_;
  std::vector<task> tasks_;
  std::vector<encoded> places_;
  std::int64_t helper_cpu_ = 0;
  large_buffer buffer_;
  std::size_t buffered_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
