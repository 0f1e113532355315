// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/comm/shared_memory/job_rendezvous.hpp>
#include <cairn/comm/shared_memory/message_ring.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/shared_segment.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

inline constexpr int max_shared_ranks = 256;

enum class world_phase : std::uint32_t { gathering, complete, given_up };
enum class rank_state : std::uint32_t { absent, attached, left, lost };

/// The beginning of the shared memory. Written by rank 0 before anybody else sees it, but for the phase.
struct world_header {
  static constexpr std::uint64_t world_magic = 0x444C524F57434343;
  std::uint64_t magic = world_magic;
  std::uint32_t version = 1;
  std::uint32_t size = 0;
  std::uint64_t ring_bytes = 0;
  std::atomic<world_phase> phase{world_phase::gathering};
};

/// What a rank shows to the others.
struct alignas(64) rank_slot {
  static constexpr std::uint32_t nobody = 0xFFFFFFFF;
  static constexpr std::uint32_t anyone = 0xFFFFFFFE;
  shared_event event;
  std::atomic<rank_state> state{rank_state::absent};
  std::atomic<std::uint32_t> waits_for{
      nobody};                           ///< whose messages end its sleep; anyone: room in a ring, too
  std::atomic<std::int32_t> process{0};  ///< as rank 0 sees it; 0: unknown
};

/// Where things lie in the shared memory.
struct world_layout {
  std::size_t size;
  std::size_t ring_bytes;

  static constexpr std::size_t page = 4096;
  [[nodiscard]] constexpr std::size_t slots_at() const noexcept { return 64; }
  [[nodiscard]] constexpr std::size_t counters_at() const noexcept {
    return slots_at() + size * sizeof(rank_slot);
  }
  [[nodiscard]] constexpr std::size_t rings_at() const noexcept {
    return (counters_at() + size * size * sizeof(ring_counters) + page - 1) / page * page;
  }
  [[nodiscard]] constexpr std::size_t total() const noexcept { return rings_at() + size * size * ring_bytes; }
};
static_assert(sizeof(world_header) <= 64 && sizeof(rank_slot) == 64);

/// The shared memory of a job's ranks: an anonymous file without a name (memfd_create), which ends with the
/// last process that has it. Its size is sealed, and what is written was allocated before: a host without
/// memory is an error, never SIGBUS. A byte of the file for each rank carries a lock that the kernel releases
/// when the process of that rank ends, however it ends; a child after fork() does not inherit it.
class shared_world {
 public:
  /// Rank 0 makes it.
  shared_world(int size, std::size_t ring_bytes) : layout_{static_cast<std::size_t>(size), ring_bytes} {
    const auto bytes = layout_.total();
    rlimit file_limit{};
    if (::getrlimit(RLIMIT_FSIZE, &file_limit) == 0 && file_limit.rlim_cur != RLIM_INFINITY &&
        bytes > file_limit.rlim_cur)
      fail(error_id::storage_limit, "the limit of file sizes is below what the ranks share (ulimit -f)",
           {.expected = std::to_string(bytes) + " bytes",
            .got = std::to_string(file_limit.rlim_cur) + " bytes"});
    file_ = file_descriptor(::memfd_create("cairn-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file_.open()) fail_system(errno, "the memory that ranks share could not be made");
    if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0)
      fail_system(errno, "the memory that ranks share could not be made");
    allocate(0, layout_.rings_at());
    if (::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      fail_system(errno, "the size of the memory that ranks share could not be sealed");
    map(bytes);
    auto* header = new (at(0)) world_header;
    header->size = static_cast<std::uint32_t>(size);
    header->ring_bytes = ring_bytes;
    for (std::size_t i = 0; i < layout_.size; ++i)
      new (at(layout_.slots_at() + i * sizeof(rank_slot))) rank_slot;
    for (std::size_t i = 0; i < layout_.size * layout_.size; ++i)
      new (at(layout_.counters_at() + i * sizeof(ring_counters))) ring_counters;
  }
  /// The others get it from rank 0, and check it.
  shared_world(file_descriptor file, int size)
      : file_(std::move(file)), layout_{static_cast<std::size_t>(size), 0} {
    const auto refuse = [](const char* why) {
      fail(error_id::peer_bad_message,
           std::string("the memory that ranks share was not made by cairn: ") + why, {.rank = 0});
    };
    struct stat s {};
    const int seals = ::fcntl(file_.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) refuse("its size may change");
    if (::fstat(file_.get(), &s) != 0 || s.st_size < static_cast<off_t>(layout_.rings_at()))
      refuse("it is too short");
    const auto bytes = static_cast<std::size_t>(s.st_size);
    map(bytes);
    const auto& header = *reinterpret_cast<const world_header*>(at(0));
    if (header.magic != world_header::world_magic) refuse("the magic number is missing");
    if (header.version != world_header().version) refuse("it has another version");
    if (header.size != layout_.size) refuse("it has another number of ranks");
    const auto ring = header.ring_bytes;
    if (ring < layout_.page || ring > (std::uint64_t{1} << 30) || !std::has_single_bit(ring))
      refuse("its rings have an impossible size");
    layout_.ring_bytes = static_cast<std::size_t>(ring);
    if (layout_.total() != bytes) refuse("its size is not what its header says");
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(layout_.size); }
  [[nodiscard]] int file() const noexcept { return file_.get(); }
  [[nodiscard]] std::atomic<world_phase>& phase() const noexcept {
    return reinterpret_cast<world_header*>(at(0))->phase;
  }
  [[nodiscard]] rank_slot& slot(int rank) const noexcept {
    return *reinterpret_cast<rank_slot*>(
        at(layout_.slots_at() + static_cast<std::size_t>(rank) * sizeof(rank_slot)));
  }
  /// The ring that `from` writes and `to` reads.
  [[nodiscard]] ring_counters& counters(int from, int to) const noexcept {
    return *reinterpret_cast<ring_counters*>(
        at(layout_.counters_at() + index(from, to) * sizeof(ring_counters)));
  }
  [[nodiscard]] std::span<std::byte> ring(int from, int to) const noexcept {
    return {at(layout_.rings_at() + index(from, to) * layout_.ring_bytes), layout_.ring_bytes};
  }
  /// Must be called before the ring is written. @throws storage_error
  void allocate_ring(int from, int to) const {
    allocate(layout_.rings_at() + index(from, to) * layout_.ring_bytes, layout_.ring_bytes);
  }
  void wake_all_ranks() const noexcept {
    for (int rank = 0; rank < size(); ++rank) slot(rank).event.notify();
  }

  /// Whether this process could show that it is the rank, which lasts until it ends. @throws storage_error
  [[nodiscard]] bool claim_rank(int rank) const {
    auto lock = lock_of(rank);
    if (::fcntl(file_.get(), F_SETLK, &lock) != 0) {
      if (errno != EAGAIN && errno != EACCES) fail_system(errno, "a rank could not show that it lives");
      return false;
    }
    auto nobody = rank_state::absent;
    return slot(rank).state.compare_exchange_strong(nobody, rank_state::attached);
  }
  /// Whether another process than this one is the rank, and lives.
  [[nodiscard]] bool claim_is_held(int rank) const noexcept {
    auto lock = lock_of(rank);
    return ::fcntl(file_.get(), F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

 private:
  static struct flock lock_of(int rank) noexcept {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
  }
  void allocate(std::size_t from, std::size_t bytes) const {
    int result = 0;
    do {
      result = ::fallocate(file_.get(), 0, static_cast<off_t>(from), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0) fail_system(errno, "there is no memory for what ranks share");
  }
  void map(std::size_t bytes) {
    try {
      region_ = boost::interprocess::mapped_region(mappable_file{file_.get()},
                                                   boost::interprocess::read_write, 0, bytes);
    } catch (const boost::interprocess::interprocess_exception& e) {
      fail_system(e.get_native_error(), "the memory that ranks share could not be mapped");
    }
  }
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept {
    return static_cast<std::byte*>(region_.get_address()) + offset;
  }
  [[nodiscard]] std::size_t index(int from, int to) const noexcept {
    return static_cast<std::size_t>(from) * layout_.size + static_cast<std::size_t>(to);
  }

  file_descriptor file_;
  world_layout layout_;
  boost::interprocess::mapped_region region_;
};

/// Who of the ranks is gone, for one of them.
class shared_watch final : public peer_watch {
 public:
  shared_watch(std::shared_ptr<const shared_world> world, int self) noexcept
      : world_(std::move(world)), self_(self) {}
  [[nodiscard]] bool is_gone(int rank) const noexcept override {
    return !is_running(*world_, self_, rank, true);
  }
  /// Whether a rank lives and has not left, as `self` sees it. `ask`: the kernel, too.
  [[nodiscard]] static bool is_running(const shared_world& world, int self, int rank, bool ask) noexcept {
    const auto& theirs = world.slot(rank);
    if (theirs.state.load() != rank_state::attached) return false;
    // The kernel does not show a process its own locks; a thread does not die alone.
    const auto mine = world.slot(self).process.load();
    if (!ask || (mine != 0 && theirs.process.load() == mine)) return true;
    return world.claim_is_held(rank);
  }

 private:
  const std::shared_ptr<const shared_world> world_;
  const int self_;
};

/// A rank's place in the world, from now on until it is destroyed; then the others see that the rank has
/// left. In a child of fork() the destructor does nothing.
class rank_claim {
 public:
  /// @throws usage_error (usage_bad_option) if another process is this rank.
  rank_claim(const shared_world& world, int rank) : world_(world), rank_(rank) {
    if (!world_.claim_rank(rank))
      fail(error_id::usage_bad_option, "this rank of the job has a process already", {.rank = rank});
  }
  rank_claim(const rank_claim&) = delete;
  rank_claim& operator=(const rank_claim&) = delete;
  ~rank_claim() {
    if (process_.in_child()) return;
    world_.slot(rank_).state.store(rank_state::left);
    world_.wake_all_ranks();
  }
  /// @throws usage_error (usage_wrong_process) in a child of fork(), which does not have the rank
  void check_process() const {
    process_.check("a communicator does not work in a child of fork(); make one there");
  }

 private:
  const shared_world& world_;
  int rank_;
  fork_guard process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
