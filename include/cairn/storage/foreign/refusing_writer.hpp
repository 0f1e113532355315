// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/storage.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <exception>
#include <span>

namespace cairn {
inline namespace v1 {

/// The StorageWriter of a ReadOnlyStorage: it writes and removes nothing, and says so. @throws usage_error
/// (usage_bad_option) from every function that would write
class refusing_writer {
 public:
  [[nodiscard]] image_layout layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                                    int rank) const;
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return 0; }
  record write(const save_context& context, const staged_image& image, deadline until);
  void commit(const save_context& context, const metadata& stored, deadline until);
  void await_commit(const save_context& context, deadline until);
  void abort(const save_context&, std::exception_ptr) noexcept {}
  void remove(std::int64_t step);
  [[nodiscard]] bool quarantine(std::int64_t) noexcept { return false; }
  [[nodiscard]] std::uint64_t clean(run_id) noexcept { return 0; }
  void check_space(space_needed needed);
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/foreign/refusing_writer.ipp>
#endif
