// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/commit/record_collection.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/storage/safetensors/shared_file_plan.hpp>
#include <cairn/storage/write_source.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The rendezvous of ranks in the file that they share, before it has a header. The first 4096 bytes of
/// the file are cells; then come the messages of the ranks, in the order of the ranks, without gaps.
/// Later the header overwrites all of this.
class shared_rendezvous {
 public:
  static constexpr std::uint64_t begin_of_messages = 4096;

  shared_rendezvous(any_store::shared_object_writer& file, std::uint64_t attempt) noexcept
      : file_(file), attempt_(attempt) {}

  /// The message of a rank, if it is complete.
  struct message {
    std::uint64_t end = 0;
    std::vector<std::byte> bytes;
  };
  [[nodiscard]] std::optional<message> find(std::uint32_t member) const {
    const auto found = read_cell(member);
    if (!found) return {};
    message m{found->end, std::vector<std::byte>(static_cast<std::size_t>(found->end - found->begin))};
    if (!file_.read(found->begin, m.bytes) || found->check != check_of(*found, m.bytes)) return {};
    return m;
  }
  /// `begin`: the end of the message of the rank before.
  void post(std::uint32_t member, std::uint64_t begin, std::span<const std::byte> bytes) {
    cell c{attempt_, begin, begin + bytes.size(), 0};
    c.check = check_of(c, bytes);
    file_.put(begin, bytes);
    file_.put(at(member), std::as_bytes(std::span(&c, 1)));
  }
  /// Says that the bytes of a member are durable.
  void post_done(std::uint32_t member) {
    cell c{attempt_, begin_of_messages, begin_of_messages, 0};
    c.check = check_of(c, {});
    file_.put(at(done + member), std::as_bytes(std::span(&c, 1)));
  }
  [[nodiscard]] bool is_done(std::uint32_t member) const {
    const auto c = read_cell(done + member);
    return c && c->check == check_of(*c, {});
  }

 private:
  struct cell {
    std::uint64_t attempt = 0, begin = 0, end = 0, check = 0;
  };
  static constexpr std::uint32_t done = max_ranks_per_file;
  static_assert(sizeof(cell) * 2 * max_ranks_per_file <= begin_of_messages);
  [[nodiscard]] static std::uint64_t at(std::uint32_t i) noexcept { return sizeof(cell) * i; }
  [[nodiscard]] static std::uint64_t check_of(const cell& c, std::span<const std::byte> bytes) {
    const std::array<std::uint64_t, 4> all{c.attempt, c.begin, c.end, digest(bytes)};
    return digest(std::as_bytes(std::span(all)));
  }
  [[nodiscard]] std::optional<cell> read_cell(std::uint32_t i) const {
    cell c;
    if (!file_.read(at(i), std::as_writable_bytes(std::span(&c, 1))) || c.attempt != attempt_ ||
        c.begin < begin_of_messages || c.end < c.begin || c.end > max_safetensors_json)
      return {};
    return c;
  }
  any_store::shared_object_writer& file_;
  std::uint64_t attempt_;
};

/// Writes this rank's items and record into files that several ranks of a host share. The first of these
/// ranks begins and finishes the files. All make the same plan, from what each rank would write alone.
/// One use, one thread.
class shared_files_writing {
 public:
  shared_files_writing(const commit_protocol& protocol, const save_context& c, const staged_image& image,
                       deadline until)
      : protocol_(protocol),
        c_(c),
        image_(image),
        until_(until),
        place_(protocol.placement(c)),
        first_(place_.first_of(c.rank)),
        members_(static_cast<std::uint32_t>(sharers_of(place_, c.rank, c.world_size))),
        self_(static_cast<std::uint32_t>(c.rank - first_)) {}

  /// @throws peer_error (peer_lost) naming a rank that does not come by the deadline; the reason of an abort.
  record run(ring_pool& rings) {
    {
      const span_note span(image_.notes().journal.get(), span_kind::await);
      files_.push_back(open(0));
      make_plan();
      for (std::uint32_t k = 1; k < plan_.files.size(); ++k) files_.push_back(open(k));
    }
    write_data(rings);
    image_.read_completely();
    for (const auto& file : files_)
      image_.control()->costs().write_cpu.fetch_add(file.helper_cpu(), std::memory_order_relaxed);
    {
      const span_note span(image_.notes().journal.get(), span_kind::await);
      image_.wait_released(until_);
    }
    auto r = write_record();
    {
      const span_note span(image_.notes().journal.get(), span_kind::sync);
      for (auto& f : files_) f.sync();
    }
    shared_rendezvous meeting(files_[0], c_.attempt);
    meeting.post_done(self_);
    if (self_ != 0) return r;
    {
      const span_note span(image_.notes().journal.get(), span_kind::await);
      for (std::uint32_t m = 1; m < members_; ++m)
        wait(m, "did not write its part", [&] { return meeting.is_done(m); });
    }
    const span_note span(image_.notes().journal.get(), span_kind::sync);
    finish();
    return r;
  }
  /// The writers of the files, which say while they exist that the save goes on.
  [[nodiscard]] std::shared_ptr<const void> writers() {
    return detail::make_shared<std::vector<writer>>(std::move(files_));
  }
  /// The number of files that may have their final names.
  [[nodiscard]] std::size_t finished() const noexcept { return finished_; }
  /// Whether the first file, by which the others may commit this save, has its name or may get it, however late.
  [[nodiscard]] bool published() const noexcept { return published_; }

 private:
  using writer = any_store::shared_object_writer;

  [[nodiscard]] std::string key(std::uint32_t k) const {
    return data_key(c_.step, c_.rank, c_.attempt, k, place_);
  }
  /// Waits until `there` is true. @throws peer_lost
  template <class There>
  void wait(std::uint32_t member, std::string_view what, There there) {
    poll_backoff pause(c_.attempt, c_.rank);
    for (int poll = 1; !there(); ++poll) {
      if (poll % 4 == 0) protocol_.objects().throw_if_aborted(c_.step, c_.attempt);
      if (!pause.wait(until_)) fail_absent(c_, first_ + static_cast<std::int32_t>(member), what, key(0));
    }
  }
  [[nodiscard]] writer open(std::uint32_t k) {
    const files_under_way::note note(image_.notes().files, key(k));
    if (self_ == 0) return protocol_.store().share(key(k), c_.attempt);
    std::optional<writer> joined;
    wait(0, "did not begin the file that it shares", [&] {
      joined = protocol_.store().join(key(k), c_.attempt);
      return joined.has_value();
    });
    return std::move(*joined);
  }
  void make_plan() {
    wire_writer own;
    const auto& layout = image_.layout();
    own.put(layout.blocks).put(static_cast<std::uint64_t>(layout.segments.size()));
    for (const auto& s : layout.segments)
      own.put(s.bytes).put(static_cast<std::uint64_t>(s.header.size())).raw(s.header);
    shared_rendezvous meeting(files_[0], c_.attempt);
    using message = shared_rendezvous::message;
    std::vector<message> messages;
    for (std::uint32_t m = 0; m < members_; ++m) {
      if (m == self_) meeting.post(m, m == 0 ? meeting.begin_of_messages : messages.back().end, own.view());
      std::optional<message> found;
      wait(m, "did not tell what it writes", [&] { return (found = meeting.find(m)).has_value(); });
      messages.push_back(std::move(*found));
    }
    std::vector<shared_member> members;
    for (const auto& m : messages) try {
        wire_reader in(m.bytes);
        shared_member member;
        member.blocks = in.get<std::uint64_t>();
        for (auto left = in.get<std::uint64_t>(); left != 0; --left) {
          const auto bytes = in.get<std::uint64_t>();
          const auto header = in.take(in.get<std::uint64_t>());
          member.files.push_back(decode_safetensors_header(header, bytes, key(0)));
        }
        in.finish();
        members.push_back(std::move(member));
      } catch (const wire_error&) {
        fail(error_id::peer_bad_message, "the message of a rank about a shared file is damaged",
             {.rank = first_ + static_cast<std::int32_t>(members.size()), .file = key(0)});
      }
    plan_ = plan_shared_files(members, first_, messages.back().end);
  }
  void write_data(ring_pool& rings) {
    const auto& layout = image_.layout();
    const auto& places = plan_.places[self_];
    write_source source(image_, rings, until_);
    std::vector<std::vector<write_range>> parts(files_.size());
    std::size_t item = 0;
    for (const auto& segment : layout.segments) {
      const auto end = segment.begin + segment.bytes;
      const files_under_way::note note(image_.notes().files, key(0));
      for (auto at = segment.begin; at < end;) {
        if (until_.passed())
          fail(error_id::timeout_write, "the checkpoint was not written in time",
               {.rank = c_.rank, .file = key(0)});
        auto position = at;
        for (const auto span : source.next(at, end)) {
          const auto span_end = position + span.size();
          while (item < layout.items.size() && layout.items[item].begin < span_end) {
            const auto& i = layout.items[item];
            const auto from = std::max(position, i.begin);
            const auto to = std::min(span_end, i.begin + i.bytes);
            if (from < to)
              parts[places[item].file].push_back({places[item].begin + (from - i.begin),
                                                  span.subspan(static_cast<std::size_t>(from - position),
                                                               static_cast<std::size_t>(to - from))});
            if (i.begin + i.bytes > span_end) break;
            ++item;
          }
          position = span_end;
        }
        {
          const span_note span(image_.notes().journal.get(), span_kind::write, position - at);
          for (std::size_t f = 0; f < files_.size(); ++f) {
            if (!parts[f].empty()) files_[f].write(parts[f]);
            parts[f].clear();
          }
        }
        at = position;
        image_.control()->costs().written.store(at, std::memory_order_relaxed);
        source.done(at);
      }
    }
    source.done(layout.bytes);
    source.finish();
  }
  [[nodiscard]] record write_record() {
    const span_note span(image_.notes().journal.get(), span_kind::record);
    auto r = record_of(image_.layout(), image_.digests());
    r.files.clear();
    for (const auto& f : plan_.files) r.files.push_back({f.bytes});
    for (std::size_t i = 0; i < r.items.size(); ++i) {
      r.items[i].file = plan_.places[self_][i].file;
      r.items[i].offset = plan_.places[self_][i].begin;
    }
    identify(r, c_);
    const auto bytes = encode_record(r);
    const auto whole = std::span<const std::byte>(bytes);
    files_[0].put(plan_.bodies[self_], whole.subspan(record_header_bytes));
    files_[0].put(plan_.headers + self_ * record_header_bytes, whole.first(record_header_bytes));
    return r;
  }
  void finish() {
    protocol_.check_open(c_);
    finished_ = files_.size();
    for (auto k = files_.size(); k-- > 0;) {
      const files_under_way::note note(image_.notes().files, key(static_cast<std::uint32_t>(k)));
      files_[k].put(0, plan_.files[k].header);
      published_ = k == 0;
      files_[k].finish(plan_.files[k].bytes);
    }
  }

  const commit_protocol& protocol_;
  const save_context& c_;
  const staged_image& image_;
  deadline until_;
  file_placement place_;
  std::int32_t first_;
  std::uint32_t members_;
  std::uint32_t self_;
  shared_file_plan plan_;
  std::vector<writer> files_;
  std::size_t finished_ = 0;
  bool published_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
