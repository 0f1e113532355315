// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/stage/host_copy.hpp>
#include <cairn/tiers/tier_files.hpp>
#include <cairn/tiers/tier_stager.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {
class tier_slots;
}

/// Options of a local_tier.
struct local_tier_options {
  /// How many saves each rank holds while the next one is copied and another one is written to the store: a rank
  /// has `keep + 2` images, with redundancy `keep + 4`. 1 to 64.
  int keep = 2;
  /// Of the threads that copy into the images.
  host_copy_options copy = {};
  /// For tests: who changes the records; null: the file system.
  std::shared_ptr<tier_files> files = nullptr;
};

/// A tier in a directory of a tmpfs of this host, which survives the end of every process of the job. The stager
/// copies straight into its files, and a save is held by one rename: no byte is copied twice, and no message is
/// sent. In a directory on a disk of this host, a thread writes the images there, and what is held survives the loss of
/// power as well. Where the trainer, its worker or both are killed, resume() finds the newest step that all ranks hold, or
/// that the store has; every block that it reads is verified, and another number of ranks may resume.
///
/// Pass it as an argument of checkpointer, in place of a stager, the same on all ranks, which are on one host; with
/// partner_copies or parity on several, each of which has a directory of its own.
/// Without persist{} every save goes to the store as well; persist{.every = n} writes each n-th save.
/// close() writes the last save to the store and removes the directory; where the job saved nothing and resumed
/// what only the tier has, it leaves it. What does not end with
/// close() leaves its images there, which occupy memory until the job resumes, or somebody removes the
/// directory.
///
/// The directory is one job's: it is refused for what a job with another store left there. Cost of a save beyond
/// the copy with its digests: a listing of the directory and a small file; see bench_tiers.
class local_tier final : public spread_tier {
 public:
  using cairn_role = role::tier;
  using stager_type = tier_stager;

  /// `directory`: an absolute path on a tmpfs or a disk, such as /dev/shm/my-run. Its parent exists: else the constructor of
  /// the checkpointer throws storage_error (storage_io). @throws usage_error (usage_bad_option)
  explicit local_tier(std::string directory, local_tier_options options = {});
  local_tier(local_tier&&) noexcept;
  ~local_tier() override;

  // See image_tier.
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] any_stager stager() override;
  void open(const tier_user& user) override;
  [[nodiscard]] std::uint64_t missing(const image_layout& layout) override;
  void check_room(std::uint64_t bytes) override;
  void keep_plan(std::uint64_t plan_digest, const metadata& stored) override;
  [[nodiscard]] any_writer writer() override;
  [[nodiscard]] std::vector<held_step> held(std::vector<std::string>& damaged) override;
  [[nodiscard]] std::vector<held_step> left_by_redundancy() override;
  [[nodiscard]] any_reader reader(const held_step& which) override;
  [[nodiscard]] bool is_stored_as(const held_step& which, std::span<const std::byte> stored) override;
  [[nodiscard]] std::optional<held_image> image(const held_step& which) override;
  void when_held(detail::callback<void(const held_step&)> call) override;
  void withdraw(const held_step& which) override;
  void go_on_from(const tier_base& base) override;
  void end() noexcept override;
  // See spread_tier.
  void spread() override;
  [[nodiscard]] std::string directory() const override;
  [[nodiscard]] std::shared_ptr<tier_files> files() const override;
  [[nodiscard]] std::int32_t first_rank() const override;
  [[nodiscard]] std::optional<pinned_save> pin(const held_step& which) override;
  void held_by_all(const held_step& which) noexcept override;
  void redundant() noexcept override;
  [[nodiscard]] bool holds_any() override;
  // See surveyed_tier.
  [[nodiscard]] std::vector<surveyed_save> survey(std::vector<std::string>& damaged) override;
  [[nodiscard]] std::vector<std::byte> manifest_of(const surveyed_save& all) override;
  [[nodiscard]] any_reader spread_reader(const surveyed_save& which,
                                         std::shared_ptr<const file_holders> holders) override;
  std::vector<std::string> give_up_damaged(const surveyed_save& which) override;
  [[nodiscard]] std::vector<std::byte> plan_of(const surveyed_save& which) override;
  void take_plan(const surveyed_save& which, std::span<const std::byte> plan) override;
  void images_were_added() override;

 private:
  std::shared_ptr<detail::tier_slots> slots_;
  host_copy_options copy_;
};
static_assert(Tier<local_tier>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/tiers/local_tier.ipp>
#endif
