// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/manage/streamed_checkpoint.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors_writer.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/shared.hpp>

#include <sys/random.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Thrown by what reads when the user has said that it is to end.
struct streaming_stopped {};

/// The image of one rank, whose bytes are read when the writer asks for them.
class streamed_image final : public image_backing {
 public:
  streamed_image(const streamed_checkpoint& made, std::size_t rank,
                 std::shared_ptr<const image_layout> layout)
      : made_(made), rank_(rank), layout_(std::move(layout)) {}

  void gather(std::uint64_t begin, std::span<std::byte> out) const override {
    if (made_.stop && made_.stop()) throw streaming_stopped{};
    const auto end = begin + out.size();
    std::memset(out.data(), 0, out.size());
    for (const auto& s : layout_->segments) {
      const auto first = std::max(begin, s.begin);
      const auto last = std::min<std::uint64_t>(end, s.begin + s.header.size());
      if (first < last)
        std::memcpy(out.data() + (first - begin), s.header.data() + (first - s.begin),
                    static_cast<std::size_t>(last - first));
    }
    std::vector<streamed_bytes> wanted;
    const auto& items = layout_->items;  // in image order
    auto at = std::partition_point(items.begin(), items.end(),
                                   [&](const item_placement& i) { return i.begin + i.bytes <= begin; });
    for (; at != items.end() && at->begin < end; ++at) {
      const auto first = std::max(begin, at->begin);
      const auto last = std::min(end, at->begin + at->bytes);
      if (first >= last) continue;
      wanted.push_back(
          {at->item, first - at->begin,
           out.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first))});
    }
    if (!wanted.empty()) made_.fetch(rank_, wanted);
  }
  [[nodiscard]] std::exception_ptr failure() const noexcept override { return nullptr; }

 private:
  const streamed_checkpoint& made_;
  const std::size_t rank_;
  const std::shared_ptr<const image_layout> layout_;
};

/// Writes the part of one rank; streams it through the writer's buffers.
inline void write_streamed_rank(safetensors_writer_base& writer, const save_context& context,
                                const streamed_checkpoint& made) {
  const auto rank = static_cast<std::size_t>(context.rank);
  std::vector<std::uint64_t> sizes;
  for (const auto& i : made.plans[rank].items) sizes.push_back(i.bytes);
  const auto layout = detail::make_shared<image_layout>(writer.layout(made.plans[rank], sizes, context.rank));
  const auto control = detail::make_shared<image_control>();
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(layout->blocks));
  const staged_image image(layout, control, {}, digests, false,
                           detail::make_shared<streamed_image>(made, rank, layout));
  control->advance(layout->bytes);
  if (layout->bytes == 0) control->release();  // nothing is read of which the end would do it
  (void)writer.write(context, image, deadline::never());
}

/// Waits for the records of all ranks, which were written here: the commit would wait for one that somebody has removed,
/// and not ask `stop`.
inline void await_records(const any_store& target, const save_context& context, const file_placement& place,
                          const streamed_checkpoint& made, deadline until) {
  const auto all_there = [&] {
    std::vector<bool> listed(static_cast<std::size_t>(context.world_size));
    for (const auto& object : target.list(step_directory(context.step) + "/")) {
      const auto name = parse_key(object.key);
      if (!name || name->object.attempt != context.attempt) continue;
      if (name->object.kind == object_kind::aborted) return true;  // the commit says why
      if (name->object.kind == object_kind::record && name->object.rank < context.world_size)
        listed[static_cast<std::size_t>(name->object.rank)] = true;
    }
    for (std::int32_t rank = 0; rank < context.world_size; ++rank)
      if (!listed[static_cast<std::size_t>(rank)] &&
          !target.size(record_key(context.step, rank, context.attempt, place)))
        return false;
    return true;
  };
  for (poll_backoff pause(context.attempt, 0); !all_there();) {
    if (made.stop && made.stop()) throw streaming_stopped{};
    if (!pause.wait(until)) return;  // the commit says what is missing
  }
}

CAIRN_BODY bool write_streamed(const any_store& target, const streamed_checkpoint& made) {
  const checkpoint_catalog catalog(target);
  if (detail::contains(catalog.list(), made.step))
    fail(error_id::storage_already_committed, "there is a checkpoint of this step already",
         {.file = std::string(target.describe()), .got = "step " + std::to_string(made.step)});
  // This reads the records of all ranks itself: no rank collects those of others for it.
  commit_options alone;
  alone.block_ranks = std::numeric_limits<std::int32_t>::max();
  safetensors_writer_base writer(target, alone);
  save_context context;
  if (::getrandom(&context.run, sizeof context.run, 0) != static_cast<ssize_t>(sizeof context.run))
    fail(error_id::storage_io, "the system gives no random numbers");
  catalog.clean_abandoned(made.step, context.run);
  context.step = made.step;
  context.attempt = attempt_of(context.run, made.step, 1);
  context.world_size = made.stored.world_size;
  digest_stream plan_digest;
  plan_digest.put(made.maker).put(context.run.high).put(context.run.low);
  context.plan_digest = plan_digest.value();
  std::uint64_t bytes = 0;
  for (const auto& plan : made.plans)
    for (const auto& item : plan.items) bytes += item.bytes;
  writer.check_space({bytes, 3 * made.plans.size()});
  const auto shown = writer.announce_worker(context);  // of rank 0, which stands for the attempt

  const auto of_rank = [&](std::size_t rank) {
    auto own = context;
    own.rank = static_cast<std::int32_t>(rank);
    return own;
  };
  const auto abort = [&](const std::exception_ptr& why) {
    for (auto rank = made.plans.size(); rank-- > 0;) writer.abort(of_rank(rank), why);
  };
  try {
    detail::parallel_for(made.plans.size(), made.ranks_at_a_time, [&](std::size_t rank, std::size_t) {
      write_streamed_rank(writer, of_rank(rank), made);
    });
    if (made.stop && made.stop()) throw streaming_stopped{};
    if (made.check) made.check();
    const auto until = deadline::in(made.commit_timeout);
    await_records(target, context, placement_of(alone, context.world_size), made, until);
    writer.commit(context, made.stored, until);
  } catch (const streaming_stopped&) {
    abort(make_failure(error_id::storage_aborted, "its caller ended it"));
    return false;
  } catch (...) {
    abort(std::current_exception());
    throw;
  }
  return true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
