// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/stage/buffered_stager_options.hpp>
#include <cairn/stage/heap_memory.hpp>
#include <cairn/stage/host_copy.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <memory>

namespace cairn {
inline namespace v1 {

class source_table;
class staged_image;
struct image_layout;
struct stage_options;

/// The default stager: a buffered_stager of ordinary memory that threads fill.
class heap_stager {
 public:
  using cairn_role = role::stager;
  using memory_type = heap_memory;
  /// Another process cannot read the images.
  static constexpr bool shareable = false;

  heap_stager() : heap_stager(buffered_stager_options{}) {}
  /// @throws usage_error (usage_bad_option) if the depth is below 1.
  explicit heap_stager(buffered_stager_options options, host_copy engine = host_copy(),
                       heap_memory memory = heap_memory());
  heap_stager(heap_stager&& other) noexcept;
  heap_stager& operator=(heap_stager&& other) noexcept;
  ~heap_stager();

  // See buffered_stager.
  [[nodiscard]] staged_image stage(std::shared_ptr<const image_layout> layout, const source_table& sources,
                                   stage_options options, deadline until);
  void prepare(const image_layout& layout, deadline until);
  void prepare(const source_table& sources);
  [[nodiscard]] int depth() const noexcept;

 private:
  struct buffered;
  detail::owned<buffered> inside_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/heap_stager.ipp>
#endif
