// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/restart_notes.hpp>
#include <cairn/storage/commit/shared_mark.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/storage/shared_files.hpp>
#include <cairn/storage/write_source.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Writes images as safetensors files over a store of any type; a StorageWriter. Copies share the store and the
/// buffers, which are kept between saves. Large pieces of the image go to the store as they are, without
/// another copy; an image that stays in training memory goes through 24 MiB of buffers, for each save that
/// runs at once. safetensors_writer<Store> is the same and knows the store's type.
class safetensors_writer_base {
 public:
  /// @throws usage_bad_option
  explicit safetensors_writer_base(any_store store, commit_options options = {})
      : options_(options),
        protocol_(store, options),
        catalog_(std::move(store)),
        held_(std::make_shared<held_objects>()),
        rings_(std::make_shared<detail::ring_pool>()) {}

  [[nodiscard]] image_layout layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                                    int rank) const {
    return safetensors_layout(plan, item_bytes, rank);
  }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return digest("safetensors 1"); }

  /// See StorageWriter. After the data files stand under their names and before the record, the attempt is
  /// checked once more: if it was aborted or another one committed, its files are removed and this throws
  /// why.
  record write(const save_context& c, const staged_image& image, deadline until) {
    protocol_.begin(c);
    protocol_.check_open(c);
    protocol_.enter(c, until);
    if (protocol_.placement(c).shared()) return write_shared(c, image, until);
    std::size_t finished = 0;
    try {
      auto r = write_files(c, image, until, finished);
      const span_note span(image.journal(), span_kind::record);
      protocol_.publish(c, r);
      return r;
    } catch (...) {
      const auto why = std::current_exception();
      // Whoever ended the attempt may have listed its files too early to see these.
      if (protocol_.unsent(c) && !record_stands(c)) remove_files(c, finished);
      std::rethrow_exception(why);
    }
  }
  void commit(const save_context& c, const metadata& stored, deadline until) {
    protocol_.commit(c, stored, until);
    held_->release(c);
  }
  void await_commit(const save_context& c, deadline until) {
    protocol_.await_commit(c, until);
    held_->release(c);
  }
  void abort(const save_context& c, std::exception_ptr failure) noexcept {
    held_->release(c);
    protocol_.abort(c, failure);
  }
  [[nodiscard]] int other_rank_that_wrote(const save_context& c) noexcept {
    return protocol_.other_rank_that_wrote(c);
  }
  /// See StorageWriter. @throws storage_error (storage_leased) where somebody reads it
  void remove(std::int64_t step) {
    const auto shown = leases().begin_removal(step);
    catalog_.remove(step);
  }
  /// See LeasingWriter.
  [[nodiscard]] checkpoint_lease lease(std::int64_t step, deadline until) {
    return leases().lease(step, until);
  }
  bool quarantine(std::int64_t step) { return catalog_.quarantine(step); }
  std::uint64_t clean(run_id run) {
    leases().clean();
    return catalog_.clean(run) + mark().remove_others(run);
  }
  /// See AnnouncesSaves; clean() finds it. Nothing where a store cannot tell whose writers live, and for ranks
  /// that only join the file of another one, without which they can do nothing.
  [[nodiscard]] save_announcement announce(const save_context& c) {
    const auto place = protocol_.placement(c);
    if (!protocol_.store().tells_writers() || place.first_of(c.rank) != c.rank) return {};
    protocol_.enter(c, deadline::in(c.timeout));
    auto shown = std::make_shared<object>(protocol_.store().create(detail::announcement_key(c, place), 0));
    shown->announce();
    const int lock = shown->lock_descriptor();
    return save_announcement(std::move(shown), lock);
  }
  /// The same by the process that carries the save out: where a store does not show who writes by the objects
  /// themselves, a run that resumes must see that it lives when its trainer is gone.
  [[nodiscard]] save_announcement announce_worker(const save_context& c) {
    return protocol_.store().announces_writers() ? announce(c) : save_announcement();
  }
  /// Removes the announcement of a process that is gone.
  void retract(const save_context& c) noexcept {
    const auto& store = protocol_.store();
    if (!store.tells_writers()) return;
    try {
      for (const auto& key : store.leftovers(detail::announcement_key(c, protocol_.placement(c))))
        store.discard(key);
    } catch (...) {  // clean() removes it
    }
  }
  /// See TellsLiveSaves.
  [[nodiscard]] std::vector<save_attempt> live_saves(run_id run) { return catalog_.live_saves(run); }
  /// See NamesPlaces.
  [[nodiscard]] std::string place_of(std::int64_t step) const { return manifest_key(step); }
  // See ProvesStore.
  [[nodiscard]] store_proof prove_store() { return protocol_.store().prove(); }
  void look_early(run_id run) { mark().look_early(run); }
  void leave_mark(run_id run) { marks_ = mark().leave(run); }
  [[nodiscard]] mark_sight sees_mark(run_id run) { return mark().seen(run); }
  void remove_mark(run_id run) noexcept {
    mark().remove(run);
    marks_.reset();
  }
  // See NotesRestarts.
  void note_restart(run_id run, std::int64_t step) { restart_notes().leave(run, step); }
  [[nodiscard]] std::vector<std::int64_t> restarts() { return restart_notes().steps(); }
  void forget_restart(run_id run, std::int64_t step) { restart_notes().remove(run, step); }
  std::size_t forget_restarts(std::int64_t up_to) { return restart_notes().remove_up_to(up_to); }
  void check_space(space_needed needed) { catalog_.check_space(needed.bytes, needed.objects); }

 protected:
  /// The options, for the description of a writer.
  [[nodiscard]] const commit_options& options() const noexcept { return options_; }

 private:
  [[nodiscard]] detail::step_leases leases() const { return detail::step_leases(protocol_.store()); }
  [[nodiscard]] detail::shared_mark mark() const noexcept { return detail::shared_mark(protocol_.store()); }
  [[nodiscard]] detail::restart_notes restart_notes() const noexcept {
    return detail::restart_notes(protocol_.store());
  }
  using object = any_store::object_writer;

  /// The writers of a save's finished objects, until the save has ended: a store that can tells by them that
  /// the save goes on. Any thread.
  class held_objects {
   public:
    void keep(const save_context& c, std::shared_ptr<const void> files) {
      const std::lock_guard lock(mutex_);
      of_[{c.attempt, c.rank}] = std::move(files);
    }
    void release(const save_context& c) noexcept {
      std::shared_ptr<const void> gone;
      const std::lock_guard lock(mutex_);
      const auto at = of_.find({c.attempt, c.rank});
      if (at == of_.end()) return;
      gone = std::move(at->second);
      of_.erase(at);
    }

   private:
    std::mutex mutex_;
    std::map<std::pair<std::uint64_t, std::int32_t>, std::shared_ptr<const void>> of_;
  };
  record write_shared(const save_context& c, const staged_image& image, deadline until) {
    detail::shared_files_writing files(protocol_, c, image, until);
    try {
      auto written = files.run(*rings_);
      if (protocol_.store().tells_writers()) held_->keep(c, files.writers());
      return written;
    } catch (...) {
      const auto why = std::current_exception();
      if (files.finished() != 0 && (files.ended() || !record_stands(c))) remove_files(c, files.finished());
      std::rethrow_exception(why);
    }
  }

  record write_files(const save_context& c, const staged_image& image, deadline until,
                     std::size_t& finished) {
    const auto& layout = image.layout();
    std::vector<object> files;
    files.reserve(layout.segments.size());
    {
      detail::write_source source(image, *rings_, until);
      for (std::uint32_t k = 0; k < layout.segments.size(); ++k) {
        const auto& segment = layout.segments[k];
        const auto key = data_key(c.step, c.rank, c.attempt, k, protocol_.placement(c));
        const files_under_way::note note(*image.files(), key);
        files.push_back(protocol_.store().create(key, segment.bytes));
        files.back().until(until);
        for (std::uint64_t at = segment.begin; at < segment.begin + segment.bytes;) {
          if (until.passed())
            fail(error_id::timeout_write, "the checkpoint was not written in time",
                 {.rank = c.rank, .file = key});
          std::vector<write_part> parts;
          auto offset = at - segment.begin;
          for (const auto span : source.next(at, segment.begin + segment.bytes)) {
            parts.push_back({offset, span});
            offset += span.size();
          }
          {
            const span_note span(image.journal(), span_kind::write, segment.begin + offset - at);
            // The memory of a resident image stays as it is until write() ends.
            image.resident() ? files.back().write_stable(parts) : files.back().write(parts);
          }
          at = segment.begin + offset;
          image.control()->costs().written.store(at, std::memory_order_relaxed);
          source.done(at);
        }
      }
      source.done(layout.bytes);
      source.finish();
    }
    image.read_completely();
    for (const auto& file : files)
      image.control()->costs().write_cpu.fetch_add(file.helper_cpu(), std::memory_order_relaxed);
    {
      const span_note span(image.journal(), span_kind::sync);
      finish(c, image, files, finished);
    }
    const span_note span(image.journal(), span_kind::await);
    image.wait_released(until);
    auto written = record_of(layout, image.digests());
    if (protocol_.store().tells_writers())
      held_->keep(c, std::make_shared<std::vector<object>>(std::move(files)));
    return written;
  }

  /// Makes the files durable, several at once: each waits for the device. `finished`: how many may stand.
  void finish(const save_context& c, const staged_image& image, std::vector<object>& files,
              std::size_t& finished) const {
    finished = files.size();
    const auto place = placement_of(options_, c.world_size);
    const std::size_t threads = std::min<std::size_t>(files.size(), 4);
    std::vector<std::exception_ptr> failures(threads);
    const auto part = [&](std::size_t t) noexcept {
      const auto cpu = thread_cpu_now();
      try {
        for (auto i = t; i < files.size(); i += threads) {
          const files_under_way::note note(
              *image.files(), data_key(c.step, c.rank, c.attempt, static_cast<std::uint32_t>(i), place));
          files[i].finish();
        }
      } catch (...) {
        failures[t] = std::current_exception();
      }
      if (t != 0)
        image.control()->costs().write_cpu.fetch_add(thread_cpu_now() - cpu, std::memory_order_relaxed);
    };
    {
      std::vector<std::jthread> others;
      others.reserve(threads);
      std::size_t begun = 1;
      try {
        for (; begun < threads; ++begun) others.emplace_back(part, begun);
      } catch (const std::system_error&) {  // no more threads: this one does their part
      }
      if (threads != 0) part(0);
      for (; begun < threads; ++begun) part(begun);
    }
    for (const auto& f : failures)
      if (f) std::rethrow_exception(f);
  }
  [[nodiscard]] bool record_stands(const save_context& c) const noexcept {
    try {
      return protocol_.store()
          .size(record_key(c.step, c.rank, c.attempt, protocol_.placement(c)))
          .has_value();
    } catch (...) {
      return true;  // unknown: the files stay until the attempt is ended
    }
  }
  void remove_files(const save_context& c, std::size_t count) const noexcept {
    for (std::uint32_t k = 0; k < count; ++k) try {
        protocol_.store().remove(data_key(c.step, c.rank, c.attempt, k, protocol_.placement(c)));
      } catch (...) {  // clean() removes it
      }
  }

  commit_options options_;
  commit_protocol protocol_;
  checkpoint_catalog catalog_;
  std::shared_ptr<held_objects> held_;
  std::shared_ptr<const void> marks_;  ///< those that stand for the moment
  std::shared_ptr<detail::ring_pool> rings_;
};

/// Writes images as safetensors files over a ByteStore; a StorageWriter, which another process can make again
/// where the store is Portable: safetensors_writer_base, which does everything, with the store's type.
template <ByteStore Store>
class safetensors_writer : public safetensors_writer_base {
 public:
  /// @throws usage_bad_option
  explicit safetensors_writer(std::shared_ptr<Store> store, commit_options options = {})
      : safetensors_writer_base(any_store(store), options), store_(std::move(store)) {}

  /// See Portable; where the store is.
  [[nodiscard]] std::vector<std::byte> description() const
    requires Portable<Store>
  {
    wire_writer out;
    detail::encode_options(out, options());
    return out.raw(store_->description()).take();
  }
  [[nodiscard]] static safetensors_writer from_description(std::span<const std::byte> bytes)
    requires Portable<Store>
  {
    wire_reader in(bytes);
    const auto options = detail::decode_options(in);
    return safetensors_writer(std::make_shared<Store>(Store::from_description(in.take(in.left()))), options);
  }

 private:
  std::shared_ptr<Store> store_;
};

}  // namespace v1
}  // namespace cairn
