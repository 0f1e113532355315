// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/shared.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

class any_writer;

/// How the process of a worker makes a writer again; see Portable.
using writer_maker = any_writer (*)(std::span<const std::byte> description);

namespace detail {

/// The name of a writer's type as this compiler spells it.
template <class Writer>
[[nodiscard]] constexpr std::string_view writer_type_name() noexcept {
  std::string_view text = __PRETTY_FUNCTION__;  // "... [with Writer = NAME; ...]" or "... [Writer = NAME]"
  constexpr std::string_view before = "Writer = ";
  text.remove_prefix(text.find(before) + before.size());
  return text.substr(0, text.find_first_of(";]"));
}

/// The functions of a StorageWriter and of what it may offer besides, whatever its type.
struct writer_face {
  virtual ~writer_face() = default;
  virtual image_layout layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                              int rank) const = 0;
  virtual std::uint64_t fingerprint() const = 0;
  virtual record write(const save_context& context, const staged_image& image, deadline until) = 0;
  virtual void commit(const save_context& context, const metadata& stored, deadline until) = 0;
  virtual void await_commit(const save_context& context, deadline until) = 0;
  virtual void abort(const save_context& context, std::exception_ptr failure) noexcept = 0;
  virtual void remove(std::int64_t step) = 0;
  virtual bool remove_attempt(save_attempt attempt) = 0;
  virtual bool quarantine(std::int64_t step) = 0;
  virtual std::uint64_t clean(run_id run) = 0;
  virtual void check_space(space_needed needed) = 0;
  virtual int other_writing_rank(const save_context& context) noexcept = 0;
  virtual bool tests_store() const noexcept = 0;
  virtual store_test_report test_store() = 0;
  virtual void look_up_mark(run_id run) = 0;
  virtual void leave_mark(run_id run) = 0;
  virtual mark_visibility sees_mark(run_id run) = 0;
  virtual void remove_mark(run_id run) noexcept = 0;
  virtual checkpoint_lease lease(std::int64_t step, deadline until, lease_check check) = 0;
  virtual std::vector<std::string> readers(std::int64_t step) = 0;
  virtual void pin(std::int64_t step, deadline until) = 0;
  virtual void unpin(std::int64_t step) = 0;
  virtual std::vector<std::int64_t> pinned() = 0;
  virtual void note_restart(run_id run, std::int64_t step) = 0;
  virtual std::vector<std::int64_t> restarts() = 0;
  virtual void forget_restart(run_id run, std::int64_t step) = 0;
  virtual std::size_t forget_restarts(std::int64_t up_to) = 0;
  virtual save_announcement announce(const save_context& context) = 0;
  virtual save_announcement announce_worker(const save_context& context) = 0;
  virtual void retract(const save_context& context) noexcept = 0;
  virtual std::vector<save_attempt> live_saves(run_id run) = 0;
  virtual takeover take_over(run_id run, const takeover_wait& waits) = 0;
  virtual std::shared_ptr<void> show_run(run_id run) = 0;
  virtual std::vector<run_id> live_runs(run_id run) = 0;
  virtual bool has_died(run_id run) = 0;
  virtual std::string root_identity() = 0;
  virtual void require_root(const known_root& known) = 0;
  virtual std::string location_of(std::int64_t step) = 0;
  virtual writer_maker maker() const noexcept = 0;
  virtual std::string_view type_name() const noexcept = 0;
  virtual std::vector<std::byte> description() const = 0;
};

}  // namespace detail

/// A StorageWriter that says at run time how another process makes it again, where its type does not say it.
///
/// - `maker()`: makes it from `description()`; null where that cannot be. `type_name()`: under which the
///   program of a worker may know it, see worker_program_main.
template <class W>
concept RemadeByMaker = StorageWriter<W> && requires(const W& k) {
  { k.maker() } noexcept -> std::same_as<writer_maker>;
  { k.type_name() } noexcept -> std::same_as<std::string_view>;
  { k.description() } -> std::same_as<std::vector<std::byte>>;
};

/// A StorageWriter of any type. Copies share it. What a writer may offer besides, this one has as functions:
/// each comment says what it does where the writer has none. Each call costs a virtual one.
class any_writer {
 public:
  /// Holds a writer.
  template <class Writer>
    requires(!std::same_as<std::remove_cvref_t<Writer>, any_writer> &&
             StorageWriter<std::remove_cvref_t<Writer>>)
  explicit any_writer(Writer&& writer)
      : face_(detail::make_shared<face_of<std::remove_cvref_t<Writer>>>(
            detail::make_shared<std::remove_cvref_t<Writer>>(std::forward<Writer>(writer)))) {}
  /// Shares a writer, which must not be null.
  template <StorageWriter Writer>
    requires(!std::same_as<Writer, any_writer>)
  explicit any_writer(std::shared_ptr<Writer> writer)
      : face_(detail::make_shared<face_of<Writer>>(std::move(writer))) {}

  // See StorageWriter.
  [[nodiscard]] image_layout layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                                    int rank) const;
  [[nodiscard]] std::uint64_t fingerprint() const;
  record write(const save_context& context, const staged_image& image, deadline until);
  void commit(const save_context& context, const metadata& stored, deadline until);
  void await_commit(const save_context& context, deadline until);
  void abort(const save_context& context, std::exception_ptr failure) noexcept;
  void remove(std::int64_t step);
  bool quarantine(std::int64_t step);
  std::uint64_t clean(run_id run);
  void check_space(space_needed needed);

  /// See RemovesAttempts; remove() and true where the writer does not compare.
  bool remove_attempt(save_attempt attempt);
  /// See FindsWritingRank; -1 where the writer does not tell.
  [[nodiscard]] int other_writing_rank(const save_context& context) noexcept;
  /// Whether the writer models TestsStore. Where it does not, the next five do nothing, test_store()
  /// gives an empty report, and every mark is seen.
  [[nodiscard]] bool tests_store() const noexcept;
  [[nodiscard]] store_test_report test_store();
  void look_up_mark(run_id run);
  void leave_mark(run_id run);
  [[nodiscard]] mark_visibility sees_mark(run_id run);
  void remove_mark(run_id run) noexcept;
  /// See LeasingWriter and LeasesUnchecked; a lease that is not held() where the writer takes none.
  [[nodiscard]] checkpoint_lease lease(std::int64_t step, deadline until,
                                       lease_check check = lease_check::at_once);
  /// See ReportsReaders; none where the writer does not tell.
  [[nodiscard]] std::vector<std::string> readers(std::int64_t step);
  /// See PinsCheckpoints; where the writer pins nothing, this throws usage_error (usage_bad_option).
  void pin(std::int64_t step, deadline until);
  /// See PinsCheckpoints; nothing happens, and nothing is pinned, where the writer pins nothing.
  void unpin(std::int64_t step);
  [[nodiscard]] std::vector<std::int64_t> pinned();
  // See TracksRestarts; nothing is noted where the writer keeps no notes.
  void note_restart(run_id run, std::int64_t step);
  [[nodiscard]] std::vector<std::int64_t> restarts();
  void forget_restart(run_id run, std::int64_t step);
  std::size_t forget_restarts(std::int64_t up_to);
  // See AnnouncesSaves; nothing is shown where the writer announces nothing.
  [[nodiscard]] save_announcement announce(const save_context& context);
  [[nodiscard]] save_announcement announce_worker(const save_context& context);
  void retract(const save_context& context) noexcept;
  /// See ReportsLiveSaves; none where the writer does not tell.
  [[nodiscard]] std::vector<save_attempt> live_saves(run_id run);
  /// See TakesOver; by live_saves() and clean() where the writer has none.
  [[nodiscard]] takeover take_over(run_id run, const takeover_wait& waits);
  // See ShowsRuns; null, none and false where the writer shows none.
  [[nodiscard]] std::shared_ptr<void> show_run(run_id run);
  [[nodiscard]] std::vector<run_id> live_runs(run_id run);
  [[nodiscard]] bool has_died(run_id run);
  // See KnowsRoot; empty, and nothing, where the writer knows of none.
  [[nodiscard]] std::string root_identity();
  void require_root(const known_root& known);
  /// See LocatesCheckpoints; empty where the writer names none.
  [[nodiscard]] std::string location_of(std::int64_t step);

  /// Makes a writer of the same type from a description; null where that type is not Portable.
  [[nodiscard]] writer_maker maker() const noexcept;
  /// The name of the writer's type as this compiler spells it.
  [[nodiscard]] std::string_view type_name() const noexcept;
  /// See Portable. @throws usage_error (usage_bad_option) where the writer is not.
  [[nodiscard]] std::vector<std::byte> description() const;
  /// The maker of writers of one type.
  template <class Writer>
    requires StorageWriter<Writer> && Portable<Writer>
  [[nodiscard]] static any_writer made_of(std::span<const std::byte> description) {
    return any_writer(Writer::from_description(description));
  }

 private:
  template <class W>
  struct face_of final : detail::writer_face {
    explicit face_of(std::shared_ptr<W> made) : writer(std::move(made)) {}
    image_layout layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                        int rank) const override {
      return std::as_const(*writer).layout(plan, item_bytes, rank);
    }
    std::uint64_t fingerprint() const override { return std::as_const(*writer).fingerprint(); }
    record write(const save_context& context, const staged_image& image, deadline until) override {
      return writer->write(context, image, until);
    }
    void commit(const save_context& context, const metadata& stored, deadline until) override {
      writer->commit(context, stored, until);
    }
    void await_commit(const save_context& context, deadline until) override {
      writer->await_commit(context, until);
    }
    void abort(const save_context& context, std::exception_ptr failure) noexcept override {
      writer->abort(context, failure);
    }
    void remove(std::int64_t step) override { writer->remove(step); }
    bool remove_attempt(save_attempt attempt) override {
      if constexpr (RemovesAttempts<W>)
        return writer->remove_attempt(attempt);
      else
        return writer->remove(attempt.step), true;
    }
    bool quarantine(std::int64_t step) override { return writer->quarantine(step); }
    std::uint64_t clean(run_id run) override { return writer->clean(run); }
    void check_space(space_needed needed) override { writer->check_space(needed); }
    int other_writing_rank([[maybe_unused]] const save_context& context) noexcept override {
      if constexpr (FindsWritingRank<W>)
        return writer->other_writing_rank(context);
      else
        return -1;
    }
    bool tests_store() const noexcept override { return TestsStore<W>; }
    store_test_report test_store() override {
      if constexpr (TestsStore<W>)
        return writer->test_store();
      else
        return {};
    }
    void look_up_mark([[maybe_unused]] run_id run) override {
      if constexpr (TestsStore<W>) writer->look_up_mark(run);
    }
    void leave_mark([[maybe_unused]] run_id run) override {
      if constexpr (TestsStore<W>) writer->leave_mark(run);
    }
    mark_visibility sees_mark([[maybe_unused]] run_id run) override {
      if constexpr (TestsStore<W>)
        return writer->sees_mark(run);
      else
        return mark_visibility::seen;
    }
    void remove_mark([[maybe_unused]] run_id run) noexcept override {
      if constexpr (TestsStore<W>) writer->remove_mark(run);
    }
    checkpoint_lease lease(std::int64_t step, [[maybe_unused]] deadline until,
                           [[maybe_unused]] lease_check check) override {
      if constexpr (LeasesUnchecked<W>)
        return writer->lease(step, until, check);
      else if constexpr (LeasingWriter<W>)
        return writer->lease(step, until);
      else
        return {step, nullptr};
    }
    std::vector<std::string> readers([[maybe_unused]] std::int64_t step) override {
      if constexpr (ReportsReaders<W>)
        return writer->readers(step);
      else
        return {};
    }
    void pin([[maybe_unused]] std::int64_t step, [[maybe_unused]] deadline until) override {
      if constexpr (PinsCheckpoints<W>)
        writer->pin(step, until);
      else
        fail(error_id::usage_bad_option, "this storage has no pins: keep the checkpoint by a policy",
             {.got = std::string(type_name())});
    }
    void unpin([[maybe_unused]] std::int64_t step) override {
      if constexpr (PinsCheckpoints<W>) writer->unpin(step);
    }
    std::vector<std::int64_t> pinned() override {
      if constexpr (PinsCheckpoints<W>)
        return writer->pinned();
      else
        return {};
    }
    void note_restart([[maybe_unused]] run_id run, [[maybe_unused]] std::int64_t step) override {
      if constexpr (TracksRestarts<W>) writer->note_restart(run, step);
    }
    std::vector<std::int64_t> restarts() override {
      if constexpr (TracksRestarts<W>)
        return writer->restarts();
      else
        return {};
    }
    void forget_restart([[maybe_unused]] run_id run, [[maybe_unused]] std::int64_t step) override {
      if constexpr (TracksRestarts<W>) writer->forget_restart(run, step);
    }
    std::size_t forget_restarts([[maybe_unused]] std::int64_t up_to) override {
      if constexpr (TracksRestarts<W>)
        return writer->forget_restarts(up_to);
      else
        return 0;
    }
    save_announcement announce([[maybe_unused]] const save_context& context) override {
      if constexpr (AnnouncesSaves<W>)
        return writer->announce(context);
      else
        return {};
    }
    save_announcement announce_worker([[maybe_unused]] const save_context& context) override {
      if constexpr (AnnouncesSaves<W>)
        return writer->announce_worker(context);
      else
        return {};
    }
    void retract([[maybe_unused]] const save_context& context) noexcept override {
      if constexpr (AnnouncesSaves<W>) writer->retract(context);
    }
    std::vector<save_attempt> live_saves([[maybe_unused]] run_id run) override {
      if constexpr (ReportsLiveSaves<W>)
        return writer->live_saves(run);
      else
        return {};
    }
    takeover take_over(run_id run, const takeover_wait& waits) override {
      if constexpr (TakesOver<W>) {
        return writer->take_over(run, waits);
      } else {
        while (waits(live_saves(run))) continue;
        return {.removed = clean(run), .steps = {}, .restarts = {}};
      }
    }
    std::shared_ptr<void> show_run([[maybe_unused]] run_id run) override {
      if constexpr (ShowsRuns<W>)
        return writer->show_run(run);
      else
        return nullptr;
    }
    std::vector<run_id> live_runs([[maybe_unused]] run_id run) override {
      if constexpr (ShowsRuns<W>)
        return writer->live_runs(run);
      else
        return {};
    }
    bool has_died([[maybe_unused]] run_id run) override {
      if constexpr (ShowsRuns<W>)
        return writer->has_died(run);
      else
        return false;
    }
    std::string root_identity() override {
      if constexpr (KnowsRoot<W>)
        return writer->root_identity();
      else
        return {};
    }
    void require_root([[maybe_unused]] const known_root& known) override {
      if constexpr (KnowsRoot<W>) writer->require_root(known);
    }
    std::string location_of([[maybe_unused]] std::int64_t step) override {
      if constexpr (LocatesCheckpoints<W>)
        return writer->location_of(step);
      else
        return {};
    }
    writer_maker maker() const noexcept override {
      if constexpr (RemadeByMaker<W>)
        return std::as_const(*writer).maker();
      else if constexpr (Portable<W>)
        return &any_writer::made_of<W>;
      else
        return nullptr;
    }
    std::string_view type_name() const noexcept override {
      if constexpr (RemadeByMaker<W>)
        return std::as_const(*writer).type_name();
      else
        return detail::writer_type_name<W>();
    }
    std::vector<std::byte> description() const override {
      if constexpr (RemadeByMaker<W> || Portable<W>)
        return std::as_const(*writer).description();
      else
        fail(error_id::usage_bad_option, "this writer cannot be used by a worker process: save on a thread",
             {.got = std::string(type_name())});
    }
    std::shared_ptr<W> writer;
  };

  std::shared_ptr<detail::writer_face> face_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_writer.ipp>
#endif
