// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/error.hpp>
#include <cairn/model/save_report.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// One thing that happened, on this rank.
struct observation {
  enum class what : std::uint8_t {
    committed,  ///< `report` is complete
    failed,     ///< a save failed; `text` is the error's
    loaded,     ///< `step`, `bytes` and `seconds` of a load
    fell_back,  ///< resume passed over a damaged checkpoint; `text` says why
    warning,    ///< `text`
  };
  what kind = what::warning;
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::string_view text = {};           ///< valid during the call
  const save_report* report = nullptr;  ///< of saves
};

/// Is told what happens. `observe` is called by the training thread and by threads of executors, at most one
/// at a time for each checkpointer, and must not throw or call the checkpointer.
template <class O>
concept Observer = std::movable<O> && requires(O& o, const observation& what) {
  { o.observe(what) } noexcept -> std::same_as<void>;
};

}  // namespace v1
}  // namespace cairn
