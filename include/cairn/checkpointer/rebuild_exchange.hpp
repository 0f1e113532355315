// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/surveyed_places.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/image_rebuilder.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/surveyed_save.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/spare_buffers.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Images of a save that are rebuilt at once, each by one rank in its place, of bytes that other ranks send. All ranks take
/// part. Bytes travel in windows of max_window: while one of them travels, the next is read by those that have it, another one is asked
/// for, and the one before is verified, computed and written. Each window begins with a word of all ranks, so that what
/// one throws all throw. Memory of a rank: four windows for each image that it rebuilds, and two for each rank
/// that asks it. The thread of training, and two more.
class rebuild_exchange {
 public:
  struct task {
    std::int32_t lost = 0;  ///< whose image
    std::int32_t by = 0;    ///< the rank that rebuilds it
  };
  /// What a rank gets at once for one image, in bytes.
  static constexpr std::uint64_t max_window = std::uint64_t{8} << 20;

  /// All arguments are the same on all ranks, but for the directory; what is referred to outlives the exchange.
  rebuild_exchange(const surveyed_places& places, const surveyed_save& save, std::vector<task> tasks,
                   image_rebuilder& rebuilder, std::string directory, collectives& group);

  /// Collective. A place that cannot take an image, such as a disk that fails, costs the others nothing: see failed().
  /// @throws corrupt_error (corrupt_missing_file) where too much is lost; storage_error where a rank cannot read;
  /// peer_error
  void run(deadline until);

  /// After run(): ranks whose place did not take an image, ascending; the same on all ranks.
  [[nodiscard]] const std::vector<std::int32_t>& failed() const noexcept { return failed_; }
  /// Why this rank's did not; null where it did.
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return place_failure_; }
  /// A sentence for each source that was wrong or gone.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  /// A window of one image that this rank rebuilds, and what came of it.
  struct window {
    std::size_t rebuild = 0;
    std::vector<rebuild_range> ranges;
    std::vector<std::int32_t> servers;  // of each range; of this place: this rank
    std::vector<std::span<const std::byte>> parts;
    std::vector<lent_message> memory;
    std::shared_ptr<std::byte[]> place;  // where the bytes of its range belong; null: nowhere
  };
  /// What a rank asks, and the message that answers it.
  struct request {
    std::int32_t from = 0;
    std::vector<rebuild_range> ranges;
    lent_message answer;
  };
  [[nodiscard]] std::int32_t server_of(const rebuild_range& r, std::int32_t asking) const;
  [[nodiscard]] bool asks(std::int32_t rank, std::int32_t other) const;
  template <class Work>
  void guarded(std::exception_ptr& into, const Work& work);
  template <class Work>
  void in_own_place(const Work& work);
  void begin_rebuilds();
  [[nodiscard]] std::vector<window> ask();
  [[nodiscard]] bool go_on(const std::exception_ptr& failure, bool active, deadline until);
  [[nodiscard]] raw_bytes memory(std::uint64_t bytes);
  void read_for_others(std::span<const std::byte> head);
  static void refuse(request& r, std::span<const std::byte> head);
  void read_here();
  void compute();
  void send_requests(std::span<const std::byte> head, std::exception_ptr& failure, deadline until);
  void send_answers(std::span<const std::byte> head, std::exception_ptr& failure, deadline until);
  void take_answers(std::int32_t from, std::size_t head, deadline until);

  const surveyed_places& places_;
  const surveyed_save& save_;
  std::vector<task> tasks_;
  image_rebuilder& rebuilder_;
  const std::string directory_;
  collectives& group_;
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs_;  // who asks whom elsewhere; ascending
  std::unique_ptr<rebuild_sources> sources_;
  std::vector<std::unique_ptr<image_rebuild>> rebuilds_;
  std::vector<std::byte> active_;  // ranks that ask in this round, by a bit each
  std::vector<std::byte> gone_;    // ranks whose place failed
  // Windows, by what becomes of them in this round.
  std::vector<window> asked_, read_, arriving_, computed_;
  std::vector<request> taken_, reading_, answered_;
  spare_buffers spares_;
  std::vector<std::int32_t> failed_;
  std::exception_ptr place_failure_;
  std::vector<std::string> notes_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/rebuild_exchange.ipp>
#endif
