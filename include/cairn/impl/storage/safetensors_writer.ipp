// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_announcement.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/commit/attempt_ending.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/lost_parts.hpp>
#include <cairn/storage/commit/pins.hpp>
#include <cairn/storage/commit/restart_notes.hpp>
#include <cairn/storage/commit/run_signs.hpp>
#include <cairn/storage/commit/shared_mark.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/linked_files.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/storage/safetensors_writer.hpp>
#include <cairn/storage/shared_files.hpp>
#include <cairn/storage/write_source.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The parts behind the public class, and its longer functions.
struct safetensors_writer_base::inside {
  using object = any_store::object_writer;

  /// Keeps the writers of a save's finished objects until the save has ended: some stores show by them that
  /// the save goes on. Any thread.
  class held_objects {
   public:
    void keep(const save_context& c, std::shared_ptr<const void> files);
    void release(const save_context& c) noexcept;

   private:
    std::mutex mutex_;
    detail::sorted_map<std::pair<std::uint64_t, std::int32_t>, std::shared_ptr<const void>> of_;
  };

  using shared_writing = record (inside::*)(const save_context& c, const staged_image& image, deadline until);
  /// `shared`: how files are written that ranks share; null: none are.
  inside(any_store store, commit_options with, shared_writing shared);

  [[nodiscard]] detail::step_leases leases() const { return detail::step_leases(protocol_.store()); }
  [[nodiscard]] detail::run_signs signs() const { return detail::run_signs(protocol_.store()); }
  [[nodiscard]] detail::step_pins pins() const { return detail::step_pins(protocol_.store()); }
  [[nodiscard]] detail::shared_mark mark() const noexcept { return detail::shared_mark(protocol_.store()); }
  [[nodiscard]] detail::restart_notes restart_notes() const noexcept {
    return detail::restart_notes(protocol_.store());
  }
  /// Whether files of frozen items are linked. Files that ranks share hold items of all of them.
  [[nodiscard]] bool links() const { return options_.ranks_per_file == 1 && protocol_.store().links(); }
  /// Readers see the removal while the result lives. @throws storage_error (storage_leased, storage_pinned)
  [[nodiscard]] std::shared_ptr<void> begin_removal(std::int64_t step) const;
  /// See checkpoint_catalog::clean(); also of leases, pins and marks.
  checkpoint_catalog::cleaning clean(run_id run, const detail::store_look& look) const;
  record write(const save_context& c, const staged_image& image, deadline until);
  void require_root(const known_root& known) const;
  /// Waits until this rank may write; see persist::writers_at_once.
  void await_turn(const save_context& c, const staged_image& image, deadline until) const;
  record write_shared(const save_context& c, const staged_image& image, deadline until);
  record write_files(const save_context& c, const staged_image& image, deadline until, std::size_t& finished);
  /// Makes the files durable, several at once, as each waits for the device, and links what is to be linked beside
  /// that. `finished`: how many may exist by then.
  void finish(const save_context& c, const staged_image& image, std::vector<object>& files,
              detail::linked_files& linked, deadline until, std::size_t& finished) const;
  [[nodiscard]] bool record_stands(const save_context& c) const noexcept;
  void remove_files(const save_context& c, std::size_t count) const noexcept;

  commit_options options_;
  commit_protocol protocol_;
  checkpoint_catalog catalog_;
  std::shared_ptr<held_objects> held_;
  std::shared_ptr<const void> marks_;  ///< objects that exist for the moment only
  std::shared_ptr<detail::ring_pool> rings_;
  shared_writing shared_;
};

CAIRN_BODY safetensors_writer_base::inside::inside(any_store store, commit_options with,
                                                   shared_writing shared)
    : options_(with),
      protocol_(store, with),
      catalog_(std::move(store)),
      held_(detail::make_shared<held_objects>()),
      rings_(detail::make_shared<detail::ring_pool>()),
      shared_(shared) {}

CAIRN_BODY safetensors_writer_base::safetensors_writer_base(any_store store, commit_options options)
    : inside_(detail::make_owned<inside>(std::move(store), options, &inside::write_shared)) {}
CAIRN_BODY safetensors_writer_base::safetensors_writer_base(any_store store, files_of_own)
    : inside_(detail::make_owned<inside>(std::move(store), commit_options(), nullptr)) {}
CAIRN_BODY safetensors_writer_base::safetensors_writer_base(const safetensors_writer_base& other)
    : inside_(detail::make_owned<inside>(*other.inside_)) {}
CAIRN_BODY safetensors_writer_base::safetensors_writer_base(safetensors_writer_base&& other) noexcept =
    default;
CAIRN_BODY safetensors_writer_base& safetensors_writer_base::operator=(const safetensors_writer_base& other) {
  if (this != &other) inside_ = detail::make_owned<inside>(*other.inside_);
  return *this;
}
CAIRN_BODY safetensors_writer_base& safetensors_writer_base::operator=(
    safetensors_writer_base&& other) noexcept = default;
CAIRN_BODY safetensors_writer_base::~safetensors_writer_base() = default;

CAIRN_BODY image_layout safetensors_writer_base::layout(const save_plan& plan,
                                                        std::span<const std::uint64_t> item_bytes,
                                                        int rank) const {
  return safetensors_layout(plan, item_bytes, rank, inside_->links());
}
CAIRN_BODY int safetensors_writer_base::other_writing_rank(const save_context& c) noexcept {
  return inside_->protocol_.other_writing_rank(c);
}
CAIRN_BODY checkpoint_lease safetensors_writer_base::lease(std::int64_t step, deadline until,
                                                           lease_check check) {
  return inside_->leases().lease(step, until, check);
}
CAIRN_BODY std::vector<std::string> safetensors_writer_base::readers(std::int64_t step) {
  return inside_->leases().readers(step);
}
CAIRN_BODY void safetensors_writer_base::pin(std::int64_t step, deadline until) {
  const auto require = [&] {
    if (!inside_->protocol_.store().size(manifest_key(step)))
      fail(error_id::storage_not_committed,
           "there is no committed checkpoint of step " + std::to_string(step) + " to pin",
           {.file = manifest_key(step)});
  };
  require();
  const auto kept =
      inside_->leases().lease(step, until, lease_check::by_caller);  // nobody removes it meanwhile
  const auto pins = inside_->pins();
  pins.add(step);
  try {
    require();
  } catch (const storage_error& e) {
    if (e.id() == error_id::storage_not_committed) pins.remove(step);
    throw;
  }
}
CAIRN_BODY void safetensors_writer_base::unpin(std::int64_t step) {
  inside_->pins().remove(step);
}
CAIRN_BODY std::vector<std::int64_t> safetensors_writer_base::pinned() {
  return inside_->pins().steps();
}
CAIRN_BODY bool safetensors_writer_base::quarantine(std::int64_t step) {
  return inside_->catalog_.quarantine(step);
}
CAIRN_BODY std::vector<save_attempt> safetensors_writer_base::live_saves(run_id run) {
  return inside_->catalog_.live_saves(run);
}
CAIRN_BODY std::shared_ptr<void> safetensors_writer_base::show_run(run_id run) {
  return inside_->signs().show(run);
}
CAIRN_BODY std::vector<run_id> safetensors_writer_base::live_runs(run_id run) {
  auto found = inside_->signs().living();
  detail::erase_if(found, [&](const run_id& other) { return other == run; });
  return found;
}
CAIRN_BODY bool safetensors_writer_base::has_died(run_id run) {
  return inside_->signs().has_died(run);
}
CAIRN_BODY std::string safetensors_writer_base::root_identity() {
  return inside_->protocol_.store().root_identity().value_or("");
}
CAIRN_BODY void safetensors_writer_base::require_root(const known_root& known) {
  inside_->require_root(known);
}
CAIRN_BODY std::string safetensors_writer_base::location_of(std::int64_t step) const {
  return manifest_key(step);
}
CAIRN_BODY store_test_report safetensors_writer_base::test_store() {
  return inside_->protocol_.store().self_test();
}
CAIRN_BODY void safetensors_writer_base::look_up_mark(run_id run) {
  inside_->mark().look_up_mark(run);
}
CAIRN_BODY void safetensors_writer_base::leave_mark(run_id run) {
  inside_->marks_ = inside_->mark().leave(run);
}
CAIRN_BODY mark_visibility safetensors_writer_base::sees_mark(run_id run) {
  return inside_->mark().seen(run);
}
CAIRN_BODY void safetensors_writer_base::note_restart(run_id run, std::int64_t step) {
  inside_->restart_notes().leave(run, step);
}
CAIRN_BODY std::vector<std::int64_t> safetensors_writer_base::restarts() {
  return inside_->restart_notes().steps();
}
CAIRN_BODY void safetensors_writer_base::forget_restart(run_id run, std::int64_t step) {
  inside_->restart_notes().remove(run, step);
}
CAIRN_BODY std::size_t safetensors_writer_base::forget_restarts(std::int64_t up_to) {
  return inside_->restart_notes().remove_up_to(up_to);
}
CAIRN_BODY void safetensors_writer_base::check_space(space_needed needed) {
  inside_->catalog_.check_space(needed.bytes, needed.objects);
}
CAIRN_BODY const commit_options& safetensors_writer_base::options() const noexcept {
  return inside_->options_;
}
CAIRN_BODY std::vector<std::byte> safetensors_writer_base::describe(const commit_options& options,
                                                                    std::span<const std::byte> store) {
  wire_writer out;
  detail::encode_options(out, options);
  return out.raw(store).take();
}
CAIRN_BODY commit_options safetensors_writer_base::described(std::span<const std::byte>& description) {
  wire_reader in(description);
  const auto options = detail::decode_options(in);
  description = description.last(in.left());
  return options;
}

CAIRN_BODY std::uint64_t safetensors_writer_base::fingerprint() const noexcept {
  return digest(inside_->links() ? "safetensors 1, frozen items apart" : "safetensors 1");
}

CAIRN_BODY void safetensors_writer_base::inside::require_root(const known_root& known) const {
  if (known.identity.empty() || known.step < 0) return;
  const auto now = protocol_.store().root_identity();
  // A root that was mounted anew may have another identity, and has the checkpoint, or a later one.
  if (now && (*now == known.identity || !catalog_.list_from(known.step).empty())) return;
  fail(error_id::storage_not_found,
       std::string(now ? "the store's directory is another one than before, and has no checkpoint of step "
                       : "the store's directory is gone, which has had a checkpoint of step ") +
           std::to_string(known.step) +
           (now ? " or later, which this run has loaded or committed"
                : ", which this run has loaded or committed") +
           ": is its disk mounted? Mount it again; where it was removed on purpose, make a new checkpointer",
       {.file = std::string(protocol_.store().describe())});
}

CAIRN_BODY void safetensors_writer_base::inside::await_turn(const save_context& c, const staged_image& image,
                                                            deadline until) const {
  if (c.writers_at_once == 0) return;
  const auto place = protocol_.placement(c);
  const auto writers = std::max(c.writers_at_once / place.ranks_per_file, 1) * place.ranks_per_file;
  const auto before = place.first_of(c.rank) - writers;
  if (before < 0) return;
  const span_note span(image.notes().journal.get(), span_kind::await);
  const auto key = record_key(c.step, before, c.attempt, place);
  const auto& store = protocol_.store();
  const files_under_way::note note(image.notes().files, key);  // what this rank's save waits for
  // False: this rank need not wait any more.
  const auto await = [&](std::int32_t rank, std::int32_t polling) {
    const auto awaited = record_key(c.step, rank, c.attempt, place);
    detail::poll_backoff pause(c.attempt, c.rank, polling);
    detail::lost_parts lost(store, c, place);
    for (std::uint64_t poll = 1; !store.size(awaited); ++poll) {
      if (poll % detail::polls_for_own_record == 0) protocol_.check_open(c);
      if (image.control()->write_limit_lifted() || image.failed()) return false;
      if (lost.has(rank) && !store.size(awaited))
        fail(error_id::peer_lost, "the rank after which this one was to write is gone", {.rank = rank});
      if (!pause.wait(until))
        fail(error_id::timeout_write, "the rank after which this one was to write has not written in time",
             {.rank = rank, .file = awaited});
    }
    return true;
  };
  // Whoever polls in a large world does so seldom. Those whose turn is near poll often: else each turn would end with
  // a pause, and all of them one after another.
  constexpr std::int32_t soon = 8;
  if (const auto early = before - soon * writers; early >= 0 && !await(early, c.world_size)) return;
  if (!await(before, std::min(c.world_size, (soon + 1) * writers)) || place.shared()) return;
  try {
    std::array<std::byte, record_header_bytes> header;
    const read_range range{key, 0, header};
    store.read({&range, 1});
    if (decode_record_header(header, key).failed) protocol_.objects().throw_failure_in(key);
  } catch (const error& e) {
    // Where the attempt has ended, its records go.
    if (e.id() == error_id::storage_not_found) protocol_.check_open(c);
    throw;
  }
}

CAIRN_BODY record safetensors_writer_base::inside::write(const save_context& c, const staged_image& image,
                                                         deadline until) {
  require_root(c.root);
  protocol_.begin(c);
  protocol_.check_open(c);
  protocol_.enter(c, until);
  await_turn(c, image, until);
  if (shared_ != nullptr && protocol_.placement(c).shared()) return (this->*shared_)(c, image, until);
  std::size_t finished = 0;
  try {
    auto r = write_files(c, image, until, finished);
    const span_note span(image.notes().journal.get(), span_kind::record);
    protocol_.publish(c, r);
    return r;
  } catch (...) {
    const auto why = std::current_exception();
    // Whoever ended the attempt may have listed its files before these existed.
    if (protocol_.unsent(c) && !record_stands(c)) remove_files(c, finished);
    std::rethrow_exception(why);
  }
}

CAIRN_BODY record safetensors_writer_base::write(const save_context& c, const staged_image& image,
                                                 deadline until) {
  return inside_->write(c, image, until);
}

CAIRN_BODY void safetensors_writer_base::commit(const save_context& c, const metadata& stored,
                                                deadline until) {
  inside_->protocol_.commit(c, stored, until);
  inside_->held_->release(c);
}

CAIRN_BODY void safetensors_writer_base::await_commit(const save_context& c, deadline until) {
  inside_->protocol_.await_commit(c, until);
  inside_->held_->release(c);
}

CAIRN_BODY void safetensors_writer_base::abort(const save_context& c, std::exception_ptr failure) noexcept {
  inside_->held_->release(c);
  inside_->protocol_.abort(c, failure);
}

CAIRN_BODY std::shared_ptr<void> safetensors_writer_base::inside::begin_removal(std::int64_t step) const {
  auto shown = leases().begin_removal(step);
  if (pins().has(step))
    fail(error_id::storage_pinned,
         "the checkpoint is pinned and was not removed; take the pin off first: unpin(step), or cairn-prune "
         "URL "
         "--unpin STEP",
         {.file = step_directory(step)});
  return shown;
}

CAIRN_BODY void safetensors_writer_base::remove(std::int64_t step) {
  const auto shown = inside_->begin_removal(step);
  inside_->catalog_.remove(step);
}

CAIRN_BODY bool safetensors_writer_base::remove_attempt(save_attempt attempt) {
  const auto shown = inside_->begin_removal(attempt.step);
  return inside_->catalog_.remove_attempt(attempt);
}

CAIRN_BODY std::uint64_t safetensors_writer_base::clean(run_id run) {
  return inside_->clean(run, detail::look_at(inside_->protocol_.store())).removed;
}

CAIRN_BODY checkpoint_catalog::cleaning safetensors_writer_base::inside::clean(
    run_id run, const detail::store_look& look) const {
  leases().clean(look);
  signs().clean(look, run);
  pins().clean(look);
  auto done = catalog_.clean(run, look);
  done.removed += mark().remove_others(run, look);
  return done;
}

CAIRN_BODY takeover safetensors_writer_base::take_over(run_id run, const takeover_wait& waits) {
  const auto& store = inside_->protocol_.store();
  auto look = detail::look_at(store);
  detail::lost_saves lost(store);
  const auto live = [&] {
    auto saves = inside_->catalog_.live_saves(run, look);
    lost.end(saves, look, run);
    return saves;
  };
  while (waits(live())) look = detail::look_at(store);
  const auto done = inside_->clean(run, look);
  takeover taken{.removed = done.removed, .steps = {}, .restarts = {}};
  // Of an attempt that was ended now, only a look after that tells whether it had committed.
  taken.steps =
      done.confirmed ? inside_->protocol_.objects().committed_among(look.steps) : inside_->catalog_.list();
  try {
    if (look.restarts) taken.restarts = inside_->restart_notes().steps(look, run);
  } catch (const error&) {  // who asks for them again tells of it
  }
  return taken;
}

CAIRN_BODY save_announcement safetensors_writer_base::announce(const save_context& c) {
  inside_->require_root(c.root);
  const auto place = inside_->protocol_.placement(c);
  if (!inside_->protocol_.store().tracks_writers() || place.first_of(c.rank) != c.rank) return {};
  inside_->protocol_.enter(c, deadline::in(c.timeout));
  auto shown = detail::make_shared<inside::object>(
      inside_->protocol_.store().show(detail::announcement_key(c, place)));
  const int lock = shown->lock_descriptor();
  return save_announcement(std::move(shown), lock);
}

CAIRN_BODY save_announcement safetensors_writer_base::announce_worker(const save_context& c) {
  return inside_->protocol_.store().announces_writers() ? announce(c) : save_announcement();
}

CAIRN_BODY void safetensors_writer_base::retract(const save_context& c) noexcept {
  const auto& store = inside_->protocol_.store();
  if (!store.tracks_writers()) return;
  try {
    for (const auto& key : store.leftovers(detail::announcement_key(c, inside_->protocol_.placement(c))))
      store.discard(key);
  } catch (...) {  // clean() removes it
  }
}

CAIRN_BODY void safetensors_writer_base::remove_mark(run_id run) noexcept {
  inside_->mark().remove(run);
  inside_->marks_.reset();
}

CAIRN_BODY void safetensors_writer_base::inside::held_objects::keep(const save_context& c,
                                                                    std::shared_ptr<const void> files) {
  const std::lock_guard lock(mutex_);
  of_[{c.attempt, c.rank}] = std::move(files);
}

CAIRN_BODY void safetensors_writer_base::inside::held_objects::release(const save_context& c) noexcept {
  std::shared_ptr<const void> released;
  const std::lock_guard lock(mutex_);
  const auto at = of_.find({c.attempt, c.rank});
  if (at == of_.end()) return;
  released = std::move(at->second);
  of_.erase(at);
}

CAIRN_BODY record safetensors_writer_base::inside::write_shared(const save_context& c,
                                                                const staged_image& image, deadline until) {
  detail::shared_files_writing files(protocol_, c, image, until);
  try {
    auto written = files.run(*rings_);
    if (protocol_.store().tracks_writers()) held_->keep(c, files.writers());
    return written;
  } catch (...) {
    const auto why = std::current_exception();
    // Where the first file may get its name, the others may commit it: abort() ends the save first, and looks.
    const bool unnamed = !files.published() || (detail::refused(why) && !record_stands(c));
    if (files.finished() != 0 && unnamed) remove_files(c, files.finished());
    std::rethrow_exception(why);
  }
}

CAIRN_BODY record safetensors_writer_base::inside::write_files(const save_context& c,
                                                               const staged_image& image, deadline until,
                                                               std::size_t& finished) {
  const auto& layout = image.layout();
  std::vector<object> files;
  files.reserve(layout.segments.size());
  std::shared_ptr<object> shown;  // where no file of its own shows that the save goes on
  if (layout.segments.empty() && protocol_.store().tracks_writers()) {
    shown = detail::make_shared<object>(
        protocol_.store().show(detail::announcement_key(c, protocol_.placement(c))));
  }
  {
    detail::write_source source(image, *rings_, until);
    for (std::uint32_t k = 0; k < layout.segments.size(); ++k) {
      const auto& segment = layout.segments[k];
      const auto key = data_key(c.step, c.rank, c.attempt, k, protocol_.placement(c));
      const files_under_way::note note(image.notes().files, key);
      files.push_back(protocol_.store().create(key, segment.bytes));
      files.back().until(until);
      for (std::uint64_t at = segment.begin; at < segment.begin + segment.bytes;) {
        if (until.passed())
          fail(error_id::timeout_write, "the checkpoint was not written in time",
               {.rank = c.rank, .file = key});
        std::vector<write_range> parts;
        auto offset = at - segment.begin;
        for (const auto span : source.next(at, segment.begin + segment.bytes)) {
          parts.push_back({offset, span});
          offset += span.size();
        }
        {
          const span_note span(image.notes().journal.get(), span_kind::write, segment.begin + offset - at);
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
  const auto place = protocol_.placement(c);
  detail::linked_files linked(protocol_.store(), place, c, layout.linked,
                              static_cast<std::uint32_t>(layout.segments.size()));
  {
    const span_note span(image.notes().journal.get(), span_kind::sync);
    finish(c, image, files, linked, until, finished);
  }
  const span_note span(image.notes().journal.get(), span_kind::await);
  image.wait_released(until);
  auto written = record_of(layout, image.digests());
  linked.add_to(written);
  if (shown != nullptr)
    held_->keep(c, std::move(shown));
  else if (protocol_.store().tracks_writers())
    held_->keep(c, detail::make_shared<std::vector<object>>(std::move(files)));
  return written;
}

CAIRN_BODY void safetensors_writer_base::inside::finish(const save_context& c, const staged_image& image,
                                                        std::vector<object>& files,
                                                        detail::linked_files& linked, deadline until,
                                                        std::size_t& finished) const {
  const auto links = image.layout().linked.size();
  finished = files.size() + links;
  const auto place = placement_of(options_, c.world_size);
  detail::parallel_for(files.size() + (links != 0 ? 1 : 0), 4, [&](std::size_t i, std::size_t thread) {
    const auto cpu = thread_cpu_now();
    if (i == files.size()) {
      linked.link(until);
    } else {
      const files_under_way::note note(
          image.notes().files, data_key(c.step, c.rank, c.attempt, static_cast<std::uint32_t>(i), place));
      files[i].finish();
    }
    if (thread != 0)
      image.control()->costs().write_cpu.fetch_add(thread_cpu_now() - cpu, std::memory_order_relaxed);
  });
}

CAIRN_BODY bool safetensors_writer_base::inside::record_stands(const save_context& c) const noexcept {
  try {
    return protocol_.store().size(record_key(c.step, c.rank, c.attempt, protocol_.placement(c))).has_value();
  } catch (...) {
    return true;  // unknown: the files stay until the attempt is ended
  }
}

CAIRN_BODY void safetensors_writer_base::inside::remove_files(const save_context& c,
                                                              std::size_t count) const noexcept {
  for (std::uint32_t k = 0; k < count; ++k) try {
      protocol_.store().remove(data_key(c.step, c.rank, c.attempt, k, protocol_.placement(c)));
    } catch (...) {  // clean() removes it
    }
}

}  // namespace v1
}  // namespace cairn
