// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/system/shared.hpp>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {

/// A Storage of any type. Copies share it.
class any_storage {
 public:
  using cairn_role = role::storage;

  template <class Inner>
    requires(!std::same_as<std::remove_cvref_t<Inner>, any_storage> && Storage<std::remove_cvref_t<Inner>>)
  explicit any_storage(Inner&& storage)
      : face_(detail::make_shared<face_of<std::remove_cvref_t<Inner>>>(std::forward<Inner>(storage))) {}

  // See Storage.
  [[nodiscard]] any_writer writer() const;
  [[nodiscard]] any_reader reader() const;
  [[nodiscard]] std::string describe() const;

 private:
  struct face {
    virtual ~face() = default;
    virtual any_writer writer() = 0;
    virtual any_reader reader() = 0;
    virtual std::string describe() = 0;
  };
  template <class S>
  struct face_of final : face {
    template <class From>
    explicit face_of(From&& made) : storage(std::forward<From>(made)) {}
    any_writer writer() override { return any_writer(storage.writer()); }
    any_reader reader() override { return any_reader(storage.reader()); }
    std::string describe() override { return storage.describe(); }
    S storage;
  };

  std::shared_ptr<face> face_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_storage.ipp>
#endif
