// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/redundancy.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/shared.hpp>

#include <concepts>
#include <memory>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

/// A Redundancy whose type is chosen at run time. Each call costs a virtual one. Copies share it.
class any_redundancy {
  struct face {
    virtual ~face() = default;
    [[nodiscard]] virtual int tolerated() const = 0;
    [[nodiscard]] virtual std::int32_t set_count(std::int32_t members) const = 0;
    [[nodiscard]] virtual std::uint64_t overhead(const redundancy_set& set, std::int32_t member) const = 0;
    [[nodiscard]] virtual std::vector<redundancy_strip> encoding(const redundancy_set& set,
                                                                 std::int32_t member) const = 0;
    [[nodiscard]] virtual std::vector<redundancy_strip> rebuilding(const redundancy_set& set,
                                                                   std::int32_t member,
                                                                   const set_survivors& survivors) const = 0;
    virtual void combine(std::span<const std::uint8_t> factors, std::span<const std::byte* const> sources,
                         std::span<std::byte> out) const = 0;
  };
  template <class R>
  struct face_of final : face {
    explicit face_of(R made) : redundancy(std::move(made)) {}
    [[nodiscard]] int tolerated() const override { return redundancy.tolerated(); }
    [[nodiscard]] std::int32_t set_count(std::int32_t members) const override {
      return redundancy.set_count(members);
    }
    [[nodiscard]] std::uint64_t overhead(const redundancy_set& set, std::int32_t member) const override {
      return redundancy.overhead(set, member);
    }
    [[nodiscard]] std::vector<redundancy_strip> encoding(const redundancy_set& set,
                                                         std::int32_t member) const override {
      return redundancy.encoding(set, member);
    }
    [[nodiscard]] std::vector<redundancy_strip> rebuilding(const redundancy_set& set, std::int32_t member,
                                                           const set_survivors& survivors) const override {
      return redundancy.rebuilding(set, member, survivors);
    }
    void combine(std::span<const std::uint8_t> factors, std::span<const std::byte* const> sources,
                 std::span<std::byte> out) const override {
      redundancy.combine(factors, sources, out);
    }
    R redundancy;
  };

 public:
  using cairn_role = role::redundancy;

  template <class R>
    requires(!std::same_as<R, any_redundancy>)
  explicit any_redundancy(R redundancy)
      : every(static_cast<int>(redundancy.every)),
        failure_group(static_cast<const std::string&>(redundancy.failure_group)) {
    static_assert(Redundancy<R>);
    face_ = detail::make_shared<face_of<R>>(std::move(redundancy));
  }

  // See Redundancy.
  [[nodiscard]] int tolerated() const { return face_->tolerated(); }
  [[nodiscard]] std::int32_t set_count(std::int32_t members) const { return face_->set_count(members); }
  [[nodiscard]] std::uint64_t overhead(const redundancy_set& set, std::int32_t member) const {
    return face_->overhead(set, member);
  }
  [[nodiscard]] std::vector<redundancy_strip> encoding(const redundancy_set& set, std::int32_t member) const {
    return face_->encoding(set, member);
  }
  [[nodiscard]] std::vector<redundancy_strip> rebuilding(const redundancy_set& set, std::int32_t member,
                                                         const set_survivors& survivors) const {
    return face_->rebuilding(set, member, survivors);
  }
  void combine(std::span<const std::uint8_t> factors, std::span<const std::byte* const> sources,
               std::span<std::byte> out) const {
    face_->combine(factors, sources, out);
  }

  int every;                  ///< see Redundancy
  std::string failure_group;  ///< see Redundancy

 private:
  std::shared_ptr<const face> face_;
};
static_assert(Redundancy<any_redundancy>);

}  // namespace v1
}  // namespace cairn
