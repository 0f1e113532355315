// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/execute/job_message.hpp>
#include <cairn/execute/main_program.hpp>
#include <cairn/execute/worker_process.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {

/// The worker of one executor, and what was sent to it already. One thread at a time.
class worker_client {
 public:
  worker_client(process_executor_options options, std::string program, bool same_program)
      : options_(std::move(options)), program_(std::move(program)), same_program_(same_program) {}

  /// A worker that runs. One that died between two saves costs none of them.
  worker_process& worker() {
    if (process_.running() && process_.link().lost()) static_cast<void>(process_.kill_and_describe());
    if (!process_.running()) {
      known_.clear();
      gone_.clear();
      layout_ = nullptr;
      metadata_ = nullptr;
      const auto begin = std::chrono::steady_clock::now();
      process_.start(program_,
                     {same_program_ ? this_program().build : 0, options_.worker, options_.bytes_per_second},
                     deadline::in(options_.start_timeout));
      start_ = std::chrono::steady_clock::now() - begin;
    }
    return process_;
  }
  [[nodiscard]] worker_process& process() noexcept { return process_; }
  /// Tells the worker, which must run and has this save, which ranks are gone of those that it waits for.
  void tell_gone(const save_context& save, deadline until) {
    if (save.peers == nullptr) return;
    wire_writer out;
    const auto before = gone_.size();
    // The others wait for the coordinator alone, but for their turn.
    const auto all = save.coordinator() || save.writers_at_once != 0;
    for (std::int32_t rank = 0; rank < (all ? save.world_size : 1); ++rank)
      if (save.peers->is_gone(rank) && gone_.insert(rank).second) out.put(rank);
    if (gone_.size() != before) process_.link().send(frame_kind::gone, out.view(), until);
  }

  /// Sends a job to the worker, which must run. A worker that does not take all of it is killed: what it has
  /// got is no message. From one that is gone already, what it said last can still be received.
  /// `announced`: a descriptor that keeps alive what others see of the save; -1: none.
  /// @return the number by which trainer and worker know this save from now on
  /// @throws usage_error where the job cannot cross, and what the socket throws.
  std::uint64_t send(const save_job& job, int announced, deadline until) {
    const auto where = job.image.shared();
    if (!where)
      fail(error_id::usage_bad_option, "process_executor needs images in shared memory: take shared_stager");
    const auto writer = job.writer.description();
    wire_writer out;
    std::int64_t offset = 0;
    if (same_program_) {
      const auto maker = reinterpret_cast<std::uintptr_t>(job.writer.maker());
      if (!this_program().contains(maker))
        fail(error_id::usage_no_worker,
             "the code of this writer is not in the main program, so that program is no worker for it; build "
             "a worker_program");
      offset = static_cast<std::int64_t>(maker) - static_cast<std::int64_t>(anchor_address());
    }
    out.put(offset).put(job.writer.type_name());
    out.put(++jobs_);
    out.put(static_cast<std::uint64_t>(writer.size())).raw(writer);
    encode(out, job.context);
    out.put(static_cast<std::uint8_t>(job.image.digested()));
    out.put(static_cast<std::uint8_t>(job.progress->notes().journal != nullptr));
    // What planning cached is the same object at the next save: it crosses once.
    const auto& layout = job.image.shared_layout();
    const bool new_layout = layout != layout_;
    out.put(static_cast<std::uint8_t>(new_layout));
    if (new_layout) encode(out, *layout);
    const bool new_metadata = job.metadata != nullptr && job.metadata != metadata_;
    out.put(static_cast<std::uint8_t>(job.metadata == nullptr ? 0 : new_metadata ? 2 : 1));
    if (new_metadata) encode(out, *job.metadata);
    encode(out, where->image);
    out.put(where->digests_offset);
    encode(out, where->control);
    std::vector<int> descriptors;
    std::map<std::uint64_t, std::weak_ptr<const void>> attached;
    const auto attach = [&](const shared_place& place) {
      const auto known = known_.find(place.id);
      if (known != known_.end() && known->second.lock() == place.segment) return false;
      if (!attached.emplace(place.id, place.segment).second) return false;
      descriptors.push_back(place.file);
      return true;
    };
    const bool new_image = attach(where->image);
    const bool new_control = attach(where->control);
    if (announced >= 0) descriptors.push_back(announced);
    out.put(
        static_cast<std::uint8_t>((new_image ? 1 : 0) | (new_control ? 2 : 0) | (announced >= 0 ? 4 : 0)));
    std::vector<std::uint64_t> freed;
    for (const auto& [id, segment] : known_)
      if (segment.expired() && !attached.contains(id)) freed.push_back(id);
    out.put(static_cast<std::uint64_t>(freed.size()));
    for (const auto id : freed) out.put(id);
    try {
      process_.link().send(frame_kind::job, out.view(), until, descriptors);
    } catch (const usage_error&) {
      throw;  // before anything was sent
    } catch (const peer_error&) {
      throw;
    } catch (...) {
      static_cast<void>(process_.kill_and_describe());
      throw;
    }
    job.progress->note([&](save_report& r) { r.worker_start_seconds = start_.count(); });
    start_ = {};
    for (const auto id : freed) known_.erase(id);
    for (auto& [id, segment] : attached) known_[id] = std::move(segment);
    layout_ = layout;
    if (job.metadata != nullptr) metadata_ = job.metadata;
    return jobs_;
  }

 private:
  process_executor_options options_;
  std::string program_;
  bool same_program_;
  worker_process process_;
  std::uint64_t jobs_ = 0;                 ///< sent
  std::chrono::duration<double> start_{};  ///< what the start of the worker took, until a save has told it
  std::map<std::uint64_t, std::weak_ptr<const void>> known_;
  std::set<std::int32_t> gone_;  ///< ranks, as the worker was told
  std::shared_ptr<const image_layout> layout_;
  std::shared_ptr<const cairn::metadata> metadata_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
