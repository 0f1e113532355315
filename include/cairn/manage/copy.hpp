// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/manage/removed_step.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/commit/earlier_mark.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/parallel.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The phase of copy_checkpoint.
enum class copy_phase : std::uint8_t { send, read_back };

/// Options of a copy of checkpoints.
struct copy_options {
  /// The approximate memory for buffers, in addition to the requests in flight of the target's writers.
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;
  /// Called with the bytes done so far and the bytes in all; often, by several threads at once.
  std::function<void(copy_phase, std::uint64_t done, std::uint64_t all)> progress = {};
  /// Called with damage that is found when the copy is read back; the copy is then not committed. See
  /// verify_options.
  std::function<void(const damage&)> found = {};
  /// Called before each request, by several threads at once; true ends the copy early.
  std::function<bool()> stop = {};
  /// The limit for the commit, which may wait for the end of another save of the same step.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  /// See commit_options. A copy that goes on after one that was ended waits at least so long before its commit.
  std::chrono::nanoseconds rival_timeout = std::chrono::seconds(10);
};

/// The result of a copy.
struct copy_report {
  enum class outcome : std::uint8_t {
    copied,     ///< it is committed now
    was_there,  ///< it was committed before; nothing was read
    stopped,    ///< `stop` said so; what arrived stays, and the next call goes on with it
  };
  /// How the copy ended.
  outcome ended = outcome::stopped;
  /// Objects that this call wrote; others were there already.
  std::uint64_t sent_objects = 0;
  /// Bytes that this call wrote.
  std::uint64_t sent_bytes = 0;
  std::uint64_t kept_objects = 0;  ///< were there from an earlier call
};

namespace detail {

/// One copy of one checkpoint. One use.
class checkpoint_copy {
 public:
  /// `to`, and a reader of what is put there.
  checkpoint_copy(any_store from, any_store to, safetensors_reader reader, std::int64_t step,
                  const copy_options& options)
      : from_(std::move(from)),
        to_(std::move(to)),
        reader_(std::move(reader)),
        step_(step),
        options_(options) {}

  copy_report run() {
    checkpoint_lease lease;  // until all is committed
    try {
      const auto key = manifest_key(step_);
      auto manifest_bytes = step_objects(from_).read_manifest(key);
      // As readers do: a manifest beside the mark that ended its attempt is no checkpoint.
      if (!manifest_bytes || step_objects(from_).is_late_manifest(step_, *manifest_bytes))
        fail(error_id::storage_not_committed,
             "there is no committed checkpoint of step " + std::to_string(step_) + " in " +
                 std::string(from_.describe()),
             {.file = key});
      const auto there = step_objects(to_).read_manifest(key);
      if (there && !step_objects(to_).remove_late_manifest(step_)) {
        if (*there != *manifest_bytes)
          fail(error_id::storage_already_committed,
               "another checkpoint of step " + std::to_string(step_) + " stands in " +
                   std::string(to_.describe()) + ": remove it first, or copy to another place",
               {.file = key});
        report_.ended = copy_report::outcome::was_there;
        return report_;
      }
      lease = lease_to_read(from_, step_);
      const auto checkpoint = reader_.open(step_, *manifest_bytes);
      read_committed(from_, step_, digest(*manifest_bytes),
                     [&] { copy(checkpoint.manifest(), *manifest_bytes); });
      report_.ended = copy_report::outcome::copied;
    } catch (const stopped&) {
      report_.ended = copy_report::outcome::stopped;
    } catch (const storage_error& e) {
      if (e.id() == error_id::storage_not_committed) remove_sent();
      throw;
    }
    report_.sent_bytes = sent_.load();
    return report_;
  }

 private:
  /// The source has lost the checkpoint: no later call could go on with what this one has sent.
  void remove_sent() noexcept {
    try {
      if (to_.size(manifest_key(step_))) return;
      for (const auto& o : objects_)
        if (o.there && !o.kept) to_.remove(o.key);
    } catch (...) {  // the caller learns of the source
    }
  }
  void copy(const manifest& m, std::span<const std::byte> manifest_bytes) {
    earlier_mark mark(to_, step_, m.attempt);
    find_objects(m);
    begin(m);
    send();
    if (!read_back(manifest_bytes)) {
      send();  // what was damaged before this call
      if (!read_back(manifest_bytes)) fail_damaged();
    }
    mark.remove(options_.rival_timeout, [&] { stop_if_asked(); });
    commit(manifest_bytes);
  }

  struct stopped {};
  struct object {
    std::string key;
    std::uint64_t bytes = 0;
    bool record = false;
    bool there = false;  ///< at the target, as a whole
    bool kept = false;   ///< was there before this call
  };
  static constexpr std::uint64_t one_request = std::uint64_t{4} << 20;
  static constexpr std::size_t small_at_once = 16;
  static constexpr std::size_t large_at_once = 4;

  void stop_if_asked() const {
    if (options_.stop && options_.stop()) throw stopped{};
  }
  void find_objects(const manifest& m) {
    const auto find = [](std::map<std::int64_t, std::vector<listed_object>>& all, auto& store,
                         std::int64_t in, std::string_view key) -> std::optional<std::uint64_t> {
      auto [at, first] = all.try_emplace(in);
      if (first) at->second = store.list(step_directory(in) + "/");
      const auto found = std::lower_bound(at->second.begin(), at->second.end(), key,
                                          [](const auto& o, std::string_view k) { return o.key < k; });
      if (found == at->second.end() || found->key != key) return std::nullopt;
      return found->bytes;
    };
    std::map<std::int64_t, std::vector<listed_object>> here, there;
    const auto add = [&](std::int64_t step, std::string key, bool record) {
      auto bytes = find(here, from_, step, key);
      if (!bytes && !record) {
        auto compressed = compressed_key(key);
        bytes = find(here, from_, step, compressed);
        if (bytes) key = std::move(compressed);
      }
      if (!bytes)
        fail(error_id::corrupt_missing_file, "an object that the manifest names is not in the source",
             {.file = std::move(key)});
      const auto size = find(there, to_, step, key);
      if (size && *size != *bytes) to_.remove(key);
      const bool same = size == bytes;
      report_.kept_objects += same;
      objects_.push_back({std::move(key), *bytes, record, same, same});
    };
    for (const auto& r : m.records) {
      if (!m.placement.shared()) add(r.step, record_key(r.step, r.rank, r.attempt, m.placement), true);
      if (r.rank != m.placement.first_of(r.rank)) continue;
      for (std::uint32_t f = 0; f < r.files; ++f)
        add(r.step, data_key(r.step, r.rank, r.attempt, f, m.placement), false);
    }
  }
  /// Takes away what an earlier copy that was killed left behind.
  void begin(const manifest& m) {
    for (const auto& key : to_.leftovers(step_directory(step_) + "/")) try {
        const auto about = unfinished_object(key);
        if (about && (about->object.kind == object_kind::manifest || about->object.attempt == m.attempt))
          to_.discard(key);
      } catch (const storage_error& e) {
        if (e.id() != error_id::storage_exists) throw;  // another copy is at work
      }
    std::uint64_t bytes = 0, count = 0;
    for (const auto& o : objects_)
      if (!o.there) bytes += o.bytes, ++count;
    checkpoint_catalog(to_).check_space(bytes, count + 1);
  }

  void send() {
    std::vector<object*> few, many;
    std::uint64_t all = 0;
    done_ = 0;
    for (auto& o : objects_) {
      if (o.there) continue;
      (o.bytes <= one_request ? many : few).push_back(&o);
      all += o.bytes;
    }
    detail::sort(few, [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
    parallel_for(few.size(), large_at_once, [&](std::size_t i, std::size_t) { send_large(*few[i], all); });
    parallel_for(many.size(), small_at_once, [&](std::size_t i, std::size_t) {
      stop_if_asked();
      auto& o = *many[i];
      const auto bytes = from_.read_all(o.key, o.bytes);
      if (!bytes || bytes->size() != o.bytes) fail_changed(o.key);
      to_.put_new(o.key, *bytes);
      sent(o, o.bytes, all);
    });
    report_.sent_objects += few.size() + many.size();
  }
  void send_large(object& o, std::uint64_t all) {
    const std::uint64_t unit = std::max<std::uint64_t>(to_.io_alignment(), 1);
    const auto piece = std::clamp<std::uint64_t>(options_.memory_bytes / large_at_once,
                                                 std::uint64_t{1} << 20, std::uint64_t{32} << 20);
    const large_buffer buffer(static_cast<std::size_t>((piece + unit - 1) / unit * unit));
    auto writer = to_.create(o.key, o.bytes);
    std::uint64_t count = 0;
    for (std::uint64_t at = 0; at < o.bytes;) {
      stop_if_asked();
      count = std::min<std::uint64_t>(buffer.size(), o.bytes - at);
      const std::span<std::byte> bytes(buffer.data(), static_cast<std::size_t>(count));
      const read_range range{o.key, at, bytes};
      from_.read({&range, 1});
      const write_range part{at, bytes};
      writer.write({&part, 1});
      at += count;
      if (at < o.bytes) progress(count, all);
    }
    stop_if_asked();
    writer.finish();
    sent(o, count, all);
  }
  void progress(std::uint64_t bytes, std::uint64_t all) {
    const auto done = done_.fetch_add(bytes) + bytes;
    if (options_.progress) options_.progress(copy_phase::send, std::min(done, all), all);
  }
  void sent(object& o, std::uint64_t last_bytes, std::uint64_t all) {
    o.there = true;
    sent_ += o.bytes;
    progress(last_bytes, all);
  }
  [[noreturn]] void fail_changed(const std::string& key) {
    fail(error_id::corrupt_size_mismatch, "an object of the source changed while it was copied",
         {.file = key});
  }

  /// True if the copy is whole. What was there before this call and is not what it should be is removed, and
  /// counts as not there any more. @throws corrupt_error if something is damaged that this call sent
  bool read_back(std::span<const std::byte> manifest_bytes) {
    std::set<std::string, std::less<>> damaged;
    std::vector<damage> found;
    verify_options options;
    options.memory_bytes = options_.memory_bytes;
    options.stop = options_.stop;
    if (options_.progress)
      options.progress = [&](std::uint64_t done, std::uint64_t all) {
        options_.progress(copy_phase::read_back, done, all);
      };
    options.found = [&](const damage& d) {
      damaged.insert(d.file);
      found.push_back(d);
    };
    const auto report = verify_checkpoint(reader_, step_, options, manifest_bytes);
    if (!report.complete) throw stopped{};
    if (report.good()) return true;
    bool again = false;
    for (auto& o : objects_) {
      if (!o.kept || (damaged.count(o.key) == 0 && damaged.count(plain_key(o.key)) == 0)) continue;
      to_.remove(o.key);
      o.there = o.kept = false;
      --report_.kept_objects;
      again = true;
    }
    if (again) return false;
    if (options_.found)
      for (const auto& d : found) options_.found(d);
    fail_damaged();
  }
  [[nodiscard]] static std::string plain_key(const std::string& key) {
    static constexpr std::string_view ending = ".cairnz";
    if (!key.ends_with(ending)) return key;
    return key.substr(0, key.size() - ending.size()) + ".safetensors";
  }
  [[noreturn]] void fail_damaged() const {
    fail(error_id::corrupt_digest,
         "the copy of step " + std::to_string(step_) +
             " is damaged where it was read back, and was not committed: the source is probably damaged; "
             "verify it",
         {.file = manifest_key(step_)});
  }

  void commit(std::span<const std::byte> manifest_bytes) {
    stop_if_asked();
    for (const auto& o : objects_)
      if (o.kept) to_.make_name_durable(o.key);
    commit_protocol(to_, {.rival_timeout = options_.rival_timeout})
        .adopt(step_, manifest_bytes, deadline::in(options_.timeout));
  }

  any_store from_;
  any_store to_;
  safetensors_reader reader_;
  std::int64_t step_;
  const copy_options& options_;
  std::vector<object> objects_;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> sent_{0};
  copy_report report_;
};

}  // namespace detail

/// Copies one checkpoint from a ByteStore to a Storage (safetensors_storage, or compressed_storage where
/// items are compressed), byte by byte, under the same keys.
///
/// - Sends objects in parallel, then reads the copy back and compares every digest (verify_checkpoint),
///   and only then publishes the manifest, by the commit_protocol: nobody ever sees a half of a copied
///   checkpoint.
/// - If it ends at any moment, also by SIGKILL, a second call continues: it does not send objects again
///   that have arrived, unless their digests are wrong.
/// - A job may use the source: where its store has leases, and this process may write there, the copy holds
///   one, so that retention keeps the checkpoint. Where it is removed all the same, what this call has sent
///   is removed again.
/// - A run that resumes at the target ends the copy (storage_aborted), and removes what had arrived; call it again then. A
///   call while that is still being removed throws storage_aborted, too. Only one copy of a step to a place at a time.
/// - Does not copy the objects in which the commit of a large world gathered records: nothing reads them.
///
/// @throws storage_error: storage_not_committed, also where the source's checkpoint is removed before its copy is
/// committed; storage_aborted, see above; storage_already_committed where the target has another
/// checkpoint of this step; storage_no_space; corrupt_error where the source is damaged, after it has called
/// options.found
template <ByteStore From, class Storage>
copy_report copy_checkpoint(From& from, const Storage& to, std::int64_t step,
                            const copy_options& options = {}) {
  return detail::checkpoint_copy(any_store::lent(from), any_store::lent(to.store()), to.reader(), step,
                                 options)
      .run();
}

}  // namespace v1
}  // namespace cairn
