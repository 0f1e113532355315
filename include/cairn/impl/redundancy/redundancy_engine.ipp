// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_context.hpp>
#include <cairn/redundancy/failure_groups.hpp>
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/link_reader.hpp>
#include <cairn/redundancy/redundancy_engine.hpp>
#include <cairn/redundancy/save_votes.hpp>
#include <cairn/redundancy/strip_reader.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/tiers/slot_rule.hpp>
#include <cairn/tiers/tier_directory.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a rank offers of a save: under these names, and the generation that generation_of() tells.
inline constexpr const char* head_offer = "cairn.head";
inline constexpr const char* image_offer = "cairn.image";
inline constexpr const char* done_offer = "cairn.done";  // its piece is kept

/// Save counts begin at 1 in each run: what an earlier run offered is never taken for this one. Each rank knows it of saves
/// that it never held, too.
[[nodiscard]] inline std::uint64_t generation_of(const run_id& run, std::uint64_t save) {
  return attempt_of(run, 0, save);
}

/// This rank has its piece, and does not know whether all ranks of the job have theirs.
struct unknown_end {};

}  // namespace detail

struct redundancy_engine::state {
  using clock = std::chrono::steady_clock;
  /// A save that gets pieces.
  struct work {
    held_image image = {};
    detail::callback<std::optional<held_image>()> ask = {};  // for the image, where it is not here yet
    run_id run = {};
    std::int64_t step = 0;
    std::uint64_t save = 0;
    std::uint64_t number = 0;  // of those that were held here: it grows, also over runs
    clock::time_point begin = {};
    [[nodiscard]] std::uint64_t generation() const { return detail::generation_of(run, save); }
  };
  /// One of the pieces that this rank has room for.
  struct slot {
    std::int32_t number = 0;
    std::uint64_t work = 0;  // whose piece it holds; 0: none
    detail::held_name record = {};
  };

  state(any_peer_link& to, any_redundancy redundancy, std::string where, redundancy_options given)
      : link(to),
        by(std::move(redundancy)),
        directory(std::move(where)),
        options(std::move(given)),
        votes(to, "cairn", options.block_timeout,
              [this](bool until_newer) { return ending() || (until_newer && has_newer()); }) {
    if (options.files == nullptr) options.files = std::make_shared<tier_files>();
  }

  [[nodiscard]] std::string path(const std::string& name) const { return directory + "/" + name; }

  /// What earlier runs left: their pieces stay until newer ones are complete.
  void adopt() {
    for (const auto& each : detail::names_in_tier(directory)) {
      if (const auto name = detail::parse_kept_name(each); name && name->rank == link.rank())
        earlier.push_back(*name);
      if (detail::rank_of_piece_name(each) == link.rank()) files_there.push_back(each);
    }
    for (std::int32_t number = 0; slots.size() < 2; ++number)
      if (std::none_of(earlier.begin(), earlier.end(), [&](const auto& e) { return e.slot == number; }))
        slots.push_back({.number = number});
    for (const auto& each : files_there)
      if (std::none_of(earlier.begin(), earlier.end(),
                       [&](const auto& e) { return detail::piece_name(e.rank, e.slot) == each; }))
        options.files->remove(path(each));
    files_there.clear();
  }
  /// Removes what earlier runs left. What cannot be removed is tried again after the next save: a save that is complete is
  /// so whatever becomes of older ones.
  void forget_earlier() noexcept {
    std::erase_if(earlier, [&](const detail::held_name& each) {
      try {
        options.files->remove(path(detail::kept_record_name(each)));
        options.files->remove(path(detail::piece_name(each.rank, each.slot)));
      } catch (...) {
        return false;
      }
      return true;
    });
  }

  /// Room for a piece; what its file held has been given up.
  [[nodiscard]] detail::file_descriptor open_piece(const std::string& name, std::uint64_t bytes) const {
    detail::file_descriptor file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct stat now {};
    if (!file.open() || ::fstat(file.get(), &now) != 0)
      detail::fail_system(errno, "a piece could not be made: " + name);
    const auto there = static_cast<std::uint64_t>(now.st_size);
    if (bytes > there) detail::check_memory(directory, bytes - there);
    const auto allocate = there == 0 ? detail::allocate_new_file : detail::allocate_file;
    if (const int code = allocate(file.get(), bytes); code != 0)
      detail::fail_system(code, "there is no room for the piece that a rank keeps for others: " + name);
    return file;
  }
  [[nodiscard]] std::uint64_t missing(std::span<const std::uint64_t> image_bytes) const {
    redundancy_set members;
    for (const auto rank : set)
      members.push_back({.rank = rank, .bytes = image_bytes[static_cast<std::size_t>(rank)]});
    const auto own = static_cast<std::int32_t>(std::find(set.begin(), set.end(), link.rank()) - set.begin());
    const auto bytes = by.overhead(members, own);
    std::uint64_t missing = 2 * bytes;  // earlier runs' go when the first of this one are complete
    for (const auto& each : detail::names_in_tier(directory)) {
      struct stat now {};
      if (detail::rank_of_piece_name(each) == link.rank() && ::stat(path(each).c_str(), &now) == 0)
        missing -= std::min({missing, bytes, static_cast<std::uint64_t>(now.st_size)});
    }
    return missing;
  }

  [[nodiscard]] bool ending() const { return ended.load(std::memory_order_acquire); }
  [[nodiscard]] bool has_newer() const {
    const std::lock_guard lock(mutex);
    return waiting.has_value();
  }

  [[nodiscard]] std::vector<detail::image_head> heads_of_all(const detail::held_name& own_name,
                                                             std::uint64_t generation,
                                                             std::span<const std::byte> own, deadline until) {
    std::vector<detail::image_head> heads;
    for (const auto rank : set) {
      if (rank == link.rank()) {
        heads.push_back(detail::decode_head(own, directory));
        continue;
      }
      const offer_key key{detail::head_offer, generation};
      const auto size = votes.await(rank, key, until, true);
      if (size > detail::max_manifest_bytes)
        fail(error_id::peer_bad_message, "a rank offers a description of its image that is too long",
             {.rank = rank, .got = std::to_string(size) + " bytes"});
      std::vector<std::byte> bytes(static_cast<std::size_t>(size));
      const fetch_range all{.offset = 0, .destination = bytes};
      static_cast<void>(
          link.fetch(rank, key, std::span(&all, 1), deadline::in(options.block_timeout).earlier(until)));
      heads.push_back(detail::decode_head(bytes, "rank " + std::to_string(rank)));
      const auto& of = heads.back().name;
      if (!(of.run == own_name.run) || of.attempt != own_name.attempt || of.step != own_name.step ||
          of.plan_digest != own_name.plan_digest || of.world_size != own_name.world_size || of.rank != rank)
        fail(error_id::peer_bad_message, "a rank offers the image of another save than the one that it names",
             {.rank = rank});
    }
    return heads;
  }

  /// Makes the pieces of a save. @throws passed_over; anything else costs this save its pieces
  void make(const held_image& image, const detail::held_name& name, std::uint64_t save, std::uint64_t number,
            redundancy_report& report) {
    const auto until = deadline::in(options.timeout);
    const auto head = detail::encode_head(detail::head_of(image));
    const std::span<const std::byte> parts[] = {head, image.bytes};
    const auto generation = detail::generation_of(name.run, save);
    const offer_key head_key{detail::head_offer, generation};
    const offer_key image_key{detail::image_offer, generation};
    /// Nobody reads the image when this has ended.
    struct offers {
      any_peer_link& link;
      const offer_key& head;
      const offer_key& image;
      ~offers() {
        link.withdraw(head, deadline::in(std::chrono::seconds(1)));
        link.withdraw(image, deadline::in(std::chrono::seconds(1)));
      }
    } offered{link, head_key, image_key};
    link.offer(image_key, std::span(&parts[1], 1));
    link.offer(head_key, std::span(&parts[0], 1));

    detail::kept_piece content;
    content.heads = heads_of_all(name, generation, head, until);
    const auto own = static_cast<std::int32_t>(std::find(set.begin(), set.end(), link.rank()) - set.begin());
    content.member = own;
    const auto members = content.set();
    content.made_by = detail::fingerprint_of(by, members, own);
    const auto strips = by.encoding(members, own);
    const auto bytes = by.overhead(members, own);

    auto& to = choose();
    const auto piece = path(detail::piece_name(link.rank(), to.number));
    const auto file = open_piece(piece, bytes);
    std::vector<detail::member_tables> tables;
    for (const auto& each : content.heads) tables.push_back({.image = each.blocks, .piece = {}});
    {
      detail::link_reader source(link,
                                 {.ranks = {set.begin(), set.end()},
                                  .image = image_key,
                                  .piece = {},
                                  .timeout = options.block_timeout.count(),
                                  .until = until},
                                 strips, tables);
      const auto read = [&](const member_range& from, std::span<std::byte> out) {
        return source.read(from, out);
      };
      detail::strip_reader reader(by, tables, read);
      std::vector<std::byte> block(static_cast<std::size_t>(std::min(bytes, digest_block_bytes)) + 64);
      const auto skipped = (64 - reinterpret_cast<std::uintptr_t>(block.data()) % 64) % 64;  // for fast sums
      for (std::uint64_t at = 0; at < bytes; at += digest_block_bytes) {
        if (ending()) throw detail::passed_over();
        const auto part = std::span(block).subspan(
            skipped, static_cast<std::size_t>(std::min(bytes - at, digest_block_bytes)));
        if (const auto bad = reader.compute(strips, at, part)) {
          const auto rank = set[static_cast<std::size_t>(bad->member)];
          if (bad->gone)
            fail(error_id::peer_lost,
                 "the image of rank " + std::to_string(rank) + " could not be fetched: " + source.failure(),
                 {.rank = rank});
          fail(error_id::corrupt_digest,
               "a block of the image of rank " + std::to_string(rank) +
                   " is not what was saved, or was damaged on its way",
               {.rank = rank, .offset = static_cast<std::int64_t>(bad->begin)});
        }
        content.blocks.add(part.size(), digest(part));
        options.files->write(piece, file.get(), at, part);
        report.fetched_bytes = source.fetched();
      }
    }
    report.kept_bytes = bytes;
    if (on_disk) options.files->sync(piece, file.get());
    keep(to, name, number, content);

    votes.tell({detail::done_offer, generation}, {});
    for (const auto rank : set)
      if (rank != link.rank())
        static_cast<void>(votes.await(rank, {detail::done_offer, generation}, until, false));
    end_of_votes(votes.agree(generation, until));
    complete(number);
  }
  [[nodiscard]] bool is_due(std::uint64_t save) const noexcept {
    return save % static_cast<std::uint64_t>(by.every) == 0;
  }
  bool hold(work next) {
    const auto save = next.save;
    // A host that is new keeps no pieces: the step that was resumed gets them, whatever its number.
    if (!is_due(save) && held_last) return false;
    // What this rank will never make pieces of, the others need not wait for.
    if (held_last && *held_last == next.run && held_save < save) {
      const auto begin = std::max(held_save + 1, save - std::min(save, detail::save_votes::max_given_up));
      for (auto missed = begin; missed < save; ++missed)
        if (is_due(missed)) votes.tell_gave_up(detail::generation_of(next.run, missed), true);
    }
    held_last = next.run;
    held_save = save;
    const auto generation = next.generation();
    next.number = ++held_count;
    next.begin = clock::now();
    std::optional<work> before = std::move(next);
    {
      const std::lock_guard lock(mutex);
      before.swap(waiting);
      reports[save] = {};
    }
    if (before && before->generation() != generation) {
      votes.tell_gave_up(before->generation(), true);
      end(before->save, {.state = redundancy_state::superseded});
    }
    changed.notify_all();
    return true;
  }
  static void end_of_votes(detail::save_votes::outcome end) {
    if (end == detail::save_votes::outcome::unknown) throw detail::unknown_end();
    if (end == detail::save_votes::outcome::given_up)
      fail(error_id::peer_failed, "other ranks of the job gave up the pieces of this save");
  }
  void complete(std::uint64_t number) noexcept {
    newest_complete = number;
    forget_earlier();
  }
  /// Keeps an image in the tier whose bytes nobody fetches any more.
  [[nodiscard]] static std::shared_ptr<const void> pin_of(held_image image) noexcept {
    return image.pin != nullptr ? std::move(image.pin) : std::move(image.memory);
  }
  /// An earlier save of this rank may be the one that the others rely on. @throws peer_error as long as that is not known
  void settle_unknown() {
    if (!unknown) return;
    const auto end = votes.ask(unknown->generation());
    if (end == detail::save_votes::outcome::unknown)
      fail(error_id::peer_lost, "it is not known yet whether all ranks have their pieces of step " +
                                    std::to_string(unknown->step) + ": this one goes without");
    if (end == detail::save_votes::outcome::complete) {
      complete(unknown->number);
      newest_redundant = pin_of(std::move(unknown->image));
      this->end(unknown->save, {.state = redundancy_state::redundant});
    }
    unknown.reset();
  }

  [[nodiscard]] slot& choose() {
    std::vector<detail::slot_state> states;
    for (const auto& each : slots) states.push_back({.generation = each.work});
    const auto chosen = detail::choose_slot(states, newest_complete);
    auto& to = slots[chosen.value_or(0)];
    if (to.work != 0) options.files->remove(path(detail::kept_record_name(to.record)));
    to.work = 0;
    return to;
  }
  void keep(slot& to, const detail::held_name& of, std::uint64_t number,
            const detail::kept_piece& content) const {
    auto name = of;
    name.slot = to.number;
    detail::put_durably(*options.files, directory, "new-piece-" + std::to_string(link.rank()),
                        detail::kept_record_name(name), detail::encode_kept(name, content), on_disk);
    to.record = name;
    to.work = number;
  }

  void run() {
    for (;;) {
      work now;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return ending() || waiting; });
        if (ending()) return;
        now = std::move(*waiting);
        waiting.reset();
      }
      votes.withdraw_old();
      redundancy_report report;
      bool keeps_unknown = false;
      try {
        settle_unknown();
        if (now.ask) {
          auto image = now.ask();
          if (!image) throw detail::passed_over();
          now.image = std::move(*image);
        }
        make(now.image, detail::name_of(now.image), now.save, now.number, report);
        report.state = redundancy_state::redundant;
      } catch (const detail::passed_over&) {
        report.state = redundancy_state::superseded;
        votes.tell_gave_up(now.generation(), true);
      } catch (const detail::unknown_end&) {
        keeps_unknown = true;
        report.state = redundancy_state::failed;
        say(report, "this rank has its piece, and has not heard in time whether all ranks have theirs");
      } catch (const std::exception& e) {
        votes.tell_gave_up(now.generation(), false);
        report.state = redundancy_state::failed;
        say(report, e.what());
      } catch (...) {  // a link of somebody else's may throw what it likes
        votes.tell_gave_up(now.generation(), false);
        report.state = redundancy_state::failed;
        say(report, "its link failed without a word");
      }
      report.seconds = std::chrono::duration<double>(clock::now() - now.begin).count();
      const auto save = now.save;
      // What was kept before is let go without the lock.
      if (report.state == redundancy_state::redundant) {
        newest_redundant = pin_of(std::move(now.image));
      } else if (keeps_unknown) {
        auto pin = pin_of(std::move(now.image));
        now.image = {};
        now.image.memory = std::move(pin);
        unknown = std::move(now);
      }
      now = {};
      end(save, report);
    }
  }
  static void say(redundancy_report& report, const char* why) noexcept {
    try {
      report.why = why;
    } catch (const std::bad_alloc&) {
      report.why = "no memory";  // needs none
    }
  }
  /// Where no memory is left, the text is missing.
  void end(std::uint64_t save, const redundancy_report& report) noexcept {
    try {
      const std::lock_guard lock(mutex);
      auto& of = reports[save];
      of = {.state = report.state,
            .why = {},
            .seconds = report.seconds,
            .fetched_bytes = report.fetched_bytes,
            .kept_bytes = report.kept_bytes};
      while (reports.size() > 64) reports.erase(reports.begin());
      say(of, report.why.c_str());
    } catch (const std::bad_alloc&) {  // its report is no longer among them
    }
    changed.notify_all();
    try {
      if (told) told(save, report);
    } catch (...) {  // an observer
    }
  }

  any_peer_link& link;
  const any_redundancy by;
  const std::string directory;
  redundancy_options options;
  std::vector<std::int32_t> set;
  bool on_disk = false;
  std::atomic<bool> ended{false};

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::optional<work> waiting;
  std::map<std::uint64_t, redundancy_report> reports;
  detail::callback<void(std::uint64_t, const redundancy_report&)> told;

  // Of hold().
  std::optional<run_id> held_last;
  std::uint64_t held_save = 0;
  std::uint64_t held_count = 0;

  // Of the thread.
  std::vector<slot> slots;
  std::vector<detail::held_name> earlier;
  std::vector<std::string> files_there;
  std::uint64_t newest_complete = 0;
  std::shared_ptr<const void> newest_redundant;  // keeps its image
  std::optional<work> unknown;                   // its image stays, too
  detail::save_votes votes;
  detail::background_thread thread;
};

CAIRN_BODY redundancy_engine::redundancy_engine(any_peer_link& link, any_redundancy by,
                                                std::span<const std::string> groups, std::string directory,
                                                redundancy_options options)
    : state_(std::make_unique<state>(link, std::move(by), std::move(directory), std::move(options))) {
  auto& s = *state_;
  if (s.by.every < 1)
    fail(error_id::usage_bad_option, "pieces are made of every save, or of each second, third, ... one",
         {.expected = "every is at least 1", .got = std::to_string(s.by.every)});
  if (groups.size() != static_cast<std::size_t>(link.size()))
    fail(error_id::usage_bad_option, "each rank of a job names its failure group",
         {.expected = std::to_string(link.size()), .got = std::to_string(groups.size())});
  for (auto& each : form_sets(groups, s.by.set_count(link.size()), s.by.tolerated()))
    if (std::find(each.begin(), each.end(), link.rank()) != each.end()) s.set = std::move(each);
  s.adopt();
  s.on_disk = !detail::lies_in_memory(s.directory);
  if (!s.thread.start("cairn-redundant", [made = &s] { made->run(); }))
    fail(error_id::storage_limit, "there is no thread for the pieces of saves: the system gives no more");
}
CAIRN_BODY redundancy_engine::~redundancy_engine() {
  auto& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.ended.store(true, std::memory_order_release);
  }
  s.changed.notify_all();
  s.thread.join();
}

CAIRN_BODY bool redundancy_engine::hold(held_image image) {
  const auto name = detail::name_of(image);
  return state_->hold({.image = std::move(image),
                       .run = name.run,
                       .step = name.step,
                       .save = save_count_of(name.run, name.step, name.attempt)});
}
CAIRN_BODY bool redundancy_engine::hold(const held_step& which,
                                        detail::callback<std::optional<held_image>()> image) {
  return state_->hold({.ask = std::move(image),
                       .run = which.run,
                       .step = which.step,
                       .save = save_count_of(which.run, which.step, which.attempt)});
}
CAIRN_BODY void redundancy_engine::when_ended(
    detail::callback<void(std::uint64_t, const redundancy_report&)> call) {
  state_->told = std::move(call);
}
CAIRN_BODY bool redundancy_engine::is_due(std::uint64_t save_count) const noexcept {
  return state_->is_due(save_count);
}
CAIRN_BODY std::optional<redundancy_report> redundancy_engine::report(std::uint64_t save_count) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->reports.find(save_count);
  if (found == state_->reports.end()) return std::nullopt;
  return found->second;
}
CAIRN_BODY std::optional<redundancy_report> redundancy_engine::wait(std::uint64_t save_count,
                                                                    deadline until) const {
  std::unique_lock lock(state_->mutex);
  const auto ended = [&] {
    const auto found = state_->reports.find(save_count);
    return found != state_->reports.end() && found->second.state != redundancy_state::pending;
  };
  if (until.time_point() == deadline::clock::time_point::max())
    state_->changed.wait(lock, ended);
  else
    static_cast<void>(state_->changed.wait_until(lock, until.time_point(), ended));
  const auto found = state_->reports.find(save_count);
  if (found == state_->reports.end()) return std::nullopt;
  return found->second;
}
CAIRN_BODY std::uint64_t redundancy_engine::missing(std::span<const std::uint64_t> image_bytes) const {
  return state_->missing(image_bytes);
}
CAIRN_BODY const std::vector<std::int32_t>& redundancy_engine::set() const noexcept {
  return state_->set;
}
CAIRN_BODY void redundancy_engine::remove_pieces() noexcept {
  auto& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.ended.store(true, std::memory_order_release);
  }
  s.changed.notify_all();
  s.thread.join();
  try {
    s.forget_earlier();
    for (const auto& each : s.slots) {
      if (each.work != 0) s.options.files->remove(s.path(detail::kept_record_name(each.record)));
      s.options.files->remove(s.path(detail::piece_name(s.link.rank(), each.number)));
    }
    s.options.files->remove(s.path("new-piece-" + std::to_string(s.link.rank())));
  } catch (...) {  // what is left is taken over by the next run
  }
}

}  // namespace v1
}  // namespace cairn
