// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/copy_check.hpp>
#include <cairn/checkpointer/copy_checks.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// With checked{}: whether frozen items are still what they were when they were written. One thread at a time.
class frozen_check {
 public:
  /// False where the frozen items of this layout were not looked at in the save before.
  [[nodiscard]] bool comparable(const image_layout& whole) const { return frozen_files(whole) == files_; }
  /// Looks at them. Why they are not what they were, if that is `asked`; else null. @throws as copy_check
  [[nodiscard]] std::exception_ptr look(std::shared_ptr<const cached_plan> planned,
                                        const std::shared_ptr<const image_layout>& whole,
                                        const source_table& sources, int rank, device_access* devices,
                                        bool asked, deadline until) {
    auto files = frozen_files(*whole);
    if (files.empty()) return nullptr;
    auto now = detail::make_shared<const copy_check>(
        std::move(planned), whole, sources, rank, devices, until,
        [whole](const item_placement& place) { return whole->segments[place.segment].frozen; });
    auto why =
        asked && earlier_ != nullptr
            ? now->compare(*earlier_, error_id::usage_memory_changed,
                           "an item that is flagged cairn::frozen has changed since it was written: nothing "
                           "of this save was published, and the next one writes it anew; leave the flag out "
                           "where training changes the item")
            : nullptr;
    earlier_ = std::move(now);
    files_ = std::move(files);
    return why;
  }

 private:
  std::shared_ptr<const copy_check> earlier_;
  std::vector<linked_file> files_;
};

template <class>
class composed_copy_checks final : public copy_checks {
 public:
  [[nodiscard]] bool comparable(const image_layout& whole) const override {
    return frozen_.comparable(whole);
  }
  [[nodiscard]] std::exception_ptr look_at_frozen(const std::shared_ptr<const cached_plan>& planned,
                                                  const std::shared_ptr<const image_layout>& whole,
                                                  const source_table& sources, int rank,
                                                  device_access* devices, bool asked,
                                                  deadline until) override {
    return frozen_.look(planned, whole, sources, rank, devices, asked, until);
  }
  void begin(const std::shared_ptr<const cached_plan>& planned,
             const std::shared_ptr<const image_layout>& layout, const source_table& sources, int rank,
             device_access* devices, deadline until) override {
    check_ = nullptr;
    check_ = detail::make_shared<const copy_check>(planned, layout, sources, rank, devices, until);
  }
  void compare_with(staged_image& image, const std::shared_ptr<save_progress>& progress,
                    bool overlapped) override {
    auto check = std::move(check_);
    if (!image.resident()) {
      image.when_read([check](const staged_image& read) { return check->compare(read); });
    } else if (overlapped && !image.control()->copied()) {
      progress->before_confirmation([check, image] { return check->compare(image); });
    } else if (auto why = check->compare(image)) {
      image = staged_image();
      std::rethrow_exception(why);
    }
  }

 private:
  frozen_check frozen_;
  std::shared_ptr<const copy_check> check_;  // of the save that is begun
};

template <class Named>
owned<copy_checks> make_copy_checks() {
  return make_owned<composed_copy_checks<Named>>();
}
#if defined(CAIRN_COMPILED)
template owned<copy_checks> make_copy_checks<void>();
#endif

}  // namespace detail
}  // namespace v1
}  // namespace cairn
