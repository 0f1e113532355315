// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/system/error.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

struct load_report;

/// One event on this rank.
struct observation {
  enum class event : std::uint8_t {
    committed,   ///< `report` is complete
    failed,      ///< a save failed; `text` is the error's
    loaded,      ///< a load ended; `step`, `bytes`, `seconds` and `load`
    fell_back,   ///< resume passed over a damaged checkpoint; `text` says why
    warning,     ///< `text`
    began,       ///< a save was enqueued; `save` is its handle. Only for observers with wants_began
    wait_began,  ///< resume waits for a save of `step` by a process of an earlier run that lives; `text`
    wait_ended,  ///< it has ended, after `seconds`; `text` says how
    fenced,      ///< it had not after `seconds`, and can not be committed any more; `text`
    read_back,   ///< a checkpoint was read back whole in the background; `step`, `bytes`, `seconds`
    held,        ///< a local_tier holds a save that goes to no store; `report` is complete
    redundant,   ///< all ranks keep their pieces of a save; `report` as it is by then, `seconds` since save()
  };
  event kind = event::warning;
  std::int32_t rank = 0;
  /// The step of the save, load or checkpoint that it is about.
  std::int64_t step = 0;
  std::uint64_t bytes = 0;
  /// How long it took, where `kind` says so.
  double seconds = 0;
  std::string_view text = {};           ///< valid during the call
  const save_report* report = nullptr;  ///< of saves that ended
  const save_handle* save = nullptr;    ///< of `began`; copy it to keep it
  const load_report* load = nullptr;    ///< of `loaded`
  /// For saves that ended, if the observer wants spans: what was done when, in all processes, in no order.
  /// Valid during the call.
  std::span<const save_span> spans = {};
};

/// Observers with `static constexpr bool wants_spans = true;` get the timed spans of each save. Without
/// such an observer cairn does not measure them.
template <class O>
inline constexpr bool wants_spans = requires { requires static_cast<bool>(O::wants_spans); };
/// Observers with `static constexpr bool wants_began = true;` get an event when a save begins, from the
/// training thread inside save().
template <class O>
inline constexpr bool wants_began = requires { requires static_cast<bool>(O::wants_began); };

/// Gets the events of a checkpointer. The training thread and threads of executors call `observe`, one at
/// a time for each checkpointer. It must not throw or call the checkpointer.
template <class O>
concept Observer = std::movable<O> && requires(O& o, const observation& what) {
  { o.observe(what) } noexcept -> std::same_as<void>;
};

/// Ignores all events: the default.
struct no_observer {
  using cairn_role = role::observer;
  void observe(const observation&) noexcept {}
};
static_assert(Observer<no_observer>);

}  // namespace v1
}  // namespace cairn
