// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/load_options.hpp>
#include <cairn/concepts/planner.hpp>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

// Options of load() for checkpoints whose names, dtypes or sizes are others than the state's, such as somebody else's
// safetensors. They are for that load alone: what is saved afterwards has the names, dtypes and sizes of the state.
//
//   ckpt.load(state, step, cairn::rename{{"model.layers.*", "blocks.*"}, {{"lm_head.weight", "wte.weight"}, "head"}},
//             cairn::convert{}, cairn::pad{"wte.weight", 0});
//
// load_report::renamed, converted and resized tell what each did.

/// One rule of a rename: which name in a checkpoint, the first of several that is there, is which name of the state.
struct rename_rule {
  /// `*` stands for any text, the same one on both sides, several in order.
  rename_rule(const char* stored, const char* name) : from{stored}, to(name) {}
  rename_rule(std::initializer_list<const char*> stored, const char* name)
      : from(stored.begin(), stored.end()), to(name) {}
  rename_rule(std::vector<std::string> stored, std::string name);
  /// Names in the checkpoint, in the order in which they are looked for.
  std::vector<std::string> from;
  /// The name in the state.
  std::string to;
};

/// For load: finds items of the state under other names of the checkpoint, by the first rule that finds one; where none
/// does, under their own. Two items may come from one (tied weights).
class rename {
 public:
  /// @throws usage_error (usage_bad_option) where a rule has other numbers of `*` on its sides
  rename(std::initializer_list<rename_rule> rules);
  explicit rename(std::vector<rename_rule> rules);
  void add_to(load_request& request) const;

 private:
  std::vector<rename_rule> rules_;
};

/// What becomes of a number that the dtype of the state has no room for: `as_ieee`: infinity, for F8_E4M3 NaN; `largest`:
/// the largest finite number. An infinity that was stored is such a number for F8_E4M3 alone: the others have room for it.
enum class overflow : unsigned char { as_ieee, largest };

/// For load: converts items between F64, F32, F16, BF16, F8_E4M3 and F8_E5M2 where the checkpoint has another dtype
/// than the state, in the pass that delivers them: to nearest, ties to even; from F64 to types of 16 and 8 bits by way of
/// F32. Scales of quantised weights are items of their own and not applied.
class convert {
 public:
  /// All items.
  convert() = default;
  /// Items whose name in the state matches one of the patterns (`*` any text, `?` one character).
  convert(std::initializer_list<std::string> items, overflow out_of_range = overflow::as_ieee)
      : convert(std::vector<std::string>(items), out_of_range) {}
  explicit convert(std::vector<std::string> items, overflow out_of_range = overflow::as_ieee);
  explicit convert(overflow out_of_range) : out_of_range_(out_of_range) {}
  void add_to(load_request& request) const;

 private:
  std::vector<std::string> items_;
  overflow out_of_range_ = overflow::as_ieee;
};

/// For pad: what was there stays.
struct keep_rest_t {};
/// See keep_rest_t.
inline constexpr keep_rest_t keep_rest{};

/// For load: tensors may be longer in one dimension in the state than in the checkpoint, such as a vocabulary that was
/// rounded up. What the checkpoint has goes to the beginning; the rest is filled with a number, or stays as it is. It is
/// cut over ranks as any tensor is.
class pad {
 public:
  static constexpr bool concerns_state = true;
  /// Items whose name in the state matches the pattern; dimension 0 is the first.
  /// @throws usage_error (usage_bad_option) for a dimension that no tensor has
  pad(std::string items, int dimension, double fill = 0);
  pad(std::string items, int dimension, keep_rest_t);
  void add_to(load_request& request) const;

 private:
  std::string items_;
  int dimension_;
  std::optional<double> fill_;
};

/// For load: tensors may be shorter in one dimension in the state than in the checkpoint; what lies behind is not read.
class cut {
 public:
  static constexpr bool concerns_state = true;
  /// See pad.
  cut(std::string items, int dimension);
  void add_to(load_request& request) const;

 private:
  std::string items_;
  int dimension_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/load_options.ipp>
#endif
