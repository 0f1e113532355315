// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/cast.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/model/tensor_view.hpp>

#include <cstddef>
#include <optional>
#include <string_view>

namespace cairn {
inline namespace v1 {

namespace detail {
class chosen_changes;
}

/// What the options of a load say of names, dtypes and sizes that differ between state and checkpoint;
/// the options of <cairn/load_options.hpp> make it, and nobody else. The same on all ranks. Any thread.
class load_changes {
 public:
  virtual ~load_changes() = default;

  /// The place of the stored item that a name of the state stands for; nothing where no rule finds one.
  [[nodiscard]] virtual std::optional<std::size_t> find(const stored_items& items,
                                                        std::string_view name) const = 0;
  /// True if the elements of an item may be converted.
  [[nodiscard]] virtual bool converts(std::string_view name) const = 0;
  /// How; nullptr: there is no conversion between the two. @pre converts(name)
  [[nodiscard]] virtual cast_function conversion(std::string_view name, dtype from, dtype to) const = 0;
  /// True if an item may be stored with another shape: longer or shorter in dimensions for which a rule says so.
  [[nodiscard]] virtual bool resizes(std::string_view name, const extents& stored,
                                     const extents& wanted) const = 0;
  /// Writes what no stored element is for, or leaves it as it is; `dimension`: in which the state is longer there.
  /// @throws usage_error for memory that the CPU does not write, and for a number that the dtype does not have
  virtual void fill(std::string_view name, int dimension, const tensor_view& rest) const = 0;

 private:
  friend detail::chosen_changes;
  load_changes() = default;
  load_changes(const load_changes&) = default;
  load_changes& operator=(const load_changes&) = default;
};

}  // namespace v1
}  // namespace cairn
