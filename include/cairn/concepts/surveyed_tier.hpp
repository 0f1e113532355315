// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_reader.hpp>
#include <cairn/model/surveyed_save.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

struct file_holders;

/// What the ranks of a job ask a tier that is in several places, to find the newest save that all places hold together,
/// and to read it. One thread calls these, after image_tier::open(); a save is named by its run, attempt and step.
class surveyed_tier {
 public:
  virtual ~surveyed_tier() = default;
  /// What the place of this rank has, ascending by step, of one run as it was saved: images alone, no pieces. `damaged`
  /// gets a sentence for each image that is there and cannot be used. @throws storage_error
  [[nodiscard]] virtual std::vector<surveyed_save> survey(std::vector<std::string>& damaged) = 0;
  /// The manifest of a save of which `all` has all images, by the plan in this place. @throws corrupt_error, storage_error
  [[nodiscard]] virtual std::vector<std::byte> manifest_of(const surveyed_save& all) = 0;
  /// A reader of this save that has the images of this place, and brings others from their holders: it models
  /// SharingReader, and read() finds what is here alone. Never throws for what is damaged: reading does.
  [[nodiscard]] virtual any_reader spread_reader(const surveyed_save& which,
                                                 std::shared_ptr<const file_holders> holders) = 0;
  /// Reads this place's images of a save whole, and gives up those with a wrong block. Returns a sentence for each.
  /// @throws storage_error
  virtual std::vector<std::string> give_up_damaged(const surveyed_save& which) = 0;
  /// The plan of a save, as bytes for take_plan() of another place. @throws corrupt_error, storage_error
  [[nodiscard]] virtual std::vector<std::byte> plan_of(const surveyed_save& which) = 0;
  /// Keeps a plan in this place. @throws storage_error
  virtual void take_plan(const surveyed_save& which, std::span<const std::byte> plan) = 0;
  /// Images of this rank may have been put into the place without the tier.
  virtual void images_were_added() = 0;

 protected:
  surveyed_tier() = default;
  surveyed_tier(surveyed_tier&&) noexcept = default;
  surveyed_tier& operator=(surveyed_tier&&) noexcept = default;
};

}  // namespace v1
}  // namespace cairn
