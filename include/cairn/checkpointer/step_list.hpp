// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_reader.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

[[nodiscard]] inline bool has_step(const std::vector<std::int64_t>& steps, std::int64_t step) noexcept {
  return detail::contains(steps, step);
}

/// The steps that are committed, listed when they are first asked for and only then.
class step_listing {
 public:
  explicit step_listing(any_reader& reader) noexcept : reader_(reader) {}
  /// @throws what the storage throws; the next call lists again then.
  [[nodiscard]] const std::vector<std::int64_t>& steps() {
    if (!steps_) steps_ = reader_.list();
    return *steps_;
  }

 private:
  any_reader& reader_;
  std::optional<std::vector<std::int64_t>> steps_;
};

/// Lists of steps as bytes, for handing on.
inline void put_steps(wire_writer& out, const std::vector<std::int64_t>& steps) {
  out.put(static_cast<std::uint64_t>(steps.size()));
  for (auto s : steps) out.put(s);
}
[[nodiscard]] inline std::vector<std::int64_t> get_steps(wire_reader& in) {
  std::vector<std::int64_t> steps(in.get_count(sizeof(std::int64_t)));
  for (auto& s : steps) s = in.get<std::int64_t>();
  return steps;
}
[[nodiscard]] inline std::vector<std::byte> encode_steps(const std::vector<std::int64_t>& steps) {
  wire_writer out;
  put_steps(out, steps);
  return out.take();
}
/// `get(in)` reads what the coordinator wrote. @throws peer_error where that is damaged
template <class Get>
[[nodiscard]] auto decode_list(std::span<const std::byte> bytes, const Get& get) {
  try {
    wire_reader in(bytes);
    auto list = get(in);
    in.finish();
    return list;
  } catch (const wire_error& e) {
    fail(error_id::peer_bad_message,
         std::string("the coordinator's list of checkpoints is damaged: ") + e.what());
  }
}
[[nodiscard]] inline std::vector<std::int64_t> decode_steps(std::span<const std::byte> bytes) {
  return decode_list(bytes, get_steps);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
