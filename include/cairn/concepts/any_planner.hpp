// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The summary of a planner whose type is not known here. Only the any_save_planner that made it, or another
/// one of the same type of planner, can open it. Empty when default-constructed or moved from.
class any_summary {
 public:
  any_summary() = default;
  /// False when default-constructed, moved from or reset.
  [[nodiscard]] bool has_value() const noexcept { return held_.get() != nullptr; }
  /// Drops the summary.
  void reset() noexcept { held_.reset(); }

 private:
  friend class any_save_planner;
  struct held {
    held() = default;
    held(const held&) = delete;
    held& operator=(const held&) = delete;
    virtual ~held() = default;
  };
  template <class Summary>
  struct held_summary final : held {
    explicit held_summary(Summary made) : summary(std::move(made)) {}
    Summary summary;
  };
  template <class Summary>
  static any_summary of(Summary summary) {
    any_summary made;
    made.held_ = detail::owned<held>(new held_summary<Summary>(std::move(summary)));
    return made;
  }
  template <class Summary>
  [[nodiscard]] Summary& as() const noexcept {
    return static_cast<held_summary<Summary>&>(*held_).summary;
  }

  detail::owned<held> held_;
};

/// A SavePlanner whose type is chosen at run time, and a SavePlanner itself. Made of a planner, which it then
/// owns, or of a std::shared_ptr to one: so one planner can be behind several handles. Each call costs a
/// virtual one, and each summary an allocation; resolve_all() and resolve_some() cost one virtual call for
/// any number of items. One thread at a time.
class any_save_planner {
 public:
  using cairn_role = role::save_planner;
  using summary_type = any_summary;

  template <class Planner>
    requires(!std::same_as<Planner, any_save_planner> && SavePlanner<Planner>)
  explicit any_save_planner(Planner planner)
      : any_save_planner(detail::make_shared<Planner>(std::move(planner))) {}
  /// @pre planner is not null
  template <SavePlanner Planner>
  explicit any_save_planner(std::shared_ptr<Planner> planner)
      : face_(new face_of<Planner>(std::move(planner))) {}

  // See SavePlanner.
  [[nodiscard]] save_plan local_plan(const state_dict& state, int rank);
  [[nodiscard]] any_summary summarise(save_plan& plan, int rank);
  [[nodiscard]] any_summary summarise(const save_plan& plan, int rank);
  /// @pre both have a value
  [[nodiscard]] any_summary merge(any_summary a, any_summary b);
  [[nodiscard]] std::vector<std::byte> encode(const any_summary& summary);
  [[nodiscard]] any_summary decode(std::span<const std::byte> bytes);
  [[nodiscard]] save_plan finish(save_plan plan, const any_summary& global, int rank, int world_size);
  [[nodiscard]] cairn::metadata metadata(const any_summary& global, int world_size);
  [[nodiscard]] item_source resolve(const state_dict& state, const write_item& item);
  [[nodiscard]] std::uint64_t fingerprint() const;

  /// resolve() of each item, in order.
  [[nodiscard]] std::vector<item_source> resolve_all(const state_dict& state,
                                                     std::span<const write_item> items);
  /// resolve() of those items alone, in order, each in place of what stands in `sources` at its index.
  /// @pre `which` holds indices of `items`, and `sources` has as many elements
  void resolve_some(const state_dict& state, std::span<const write_item> items,
                    std::span<const std::size_t> which, std::span<item_source> sources);
  /// See the variable of this name.
  [[nodiscard]] bool resolves_by_binding() const noexcept;

 private:
  struct face {
    face() = default;
    face(const face&) = delete;
    face& operator=(const face&) = delete;
    virtual ~face() = default;
    virtual save_plan local_plan(const state_dict& state, int rank) = 0;
    virtual any_summary summarise(save_plan& plan, int rank) = 0;
    virtual any_summary merge(any_summary& a, any_summary& b) = 0;
    virtual std::vector<std::byte> encode(const any_summary& summary) = 0;
    virtual any_summary decode(std::span<const std::byte> bytes) = 0;
    virtual save_plan finish(save_plan&& plan, const any_summary& global, int rank, int world_size) = 0;
    virtual cairn::metadata metadata(const any_summary& global, int world_size) = 0;
    virtual item_source resolve(const state_dict& state, const write_item& item) = 0;
    virtual std::vector<item_source> resolve_all(const state_dict& state,
                                                 std::span<const write_item> items) = 0;
    virtual void resolve_some(const state_dict& state, std::span<const write_item> items,
                              std::span<const std::size_t> which, std::span<item_source> sources) = 0;
    virtual std::uint64_t fingerprint() const = 0;
    virtual bool resolves_by_binding() const noexcept = 0;
  };
  template <class Planner>
  struct face_of final : face {
    using summary = typename Planner::summary_type;
    explicit face_of(std::shared_ptr<Planner> made) : planner(std::move(made)) {}
    save_plan local_plan(const state_dict& state, int rank) override {
      return planner->local_plan(state, rank);
    }
    any_summary summarise(save_plan& plan, int rank) override {
      return any_summary::of<summary>(planner->summarise(plan, rank));
    }
    any_summary merge(any_summary& a, any_summary& b) override {
      return any_summary::of<summary>(planner->merge(std::move(a.as<summary>()), std::move(b.as<summary>())));
    }
    std::vector<std::byte> encode(const any_summary& s) override {
      return planner->encode(std::as_const(s.as<summary>()));
    }
    any_summary decode(std::span<const std::byte> bytes) override {
      return any_summary::of<summary>(planner->decode(bytes));
    }
    save_plan finish(save_plan&& plan, const any_summary& global, int rank, int world_size) override {
      return planner->finish(std::move(plan), std::as_const(global.as<summary>()), rank, world_size);
    }
    cairn::metadata metadata(const any_summary& global, int world_size) override {
      return planner->metadata(std::as_const(global.as<summary>()), world_size);
    }
    item_source resolve(const state_dict& state, const write_item& item) override {
      return planner->resolve(state, item);
    }
    std::vector<item_source> resolve_all(const state_dict& state,
                                         std::span<const write_item> items) override {
      std::vector<item_source> sources;
      sources.reserve(items.size());
      for (const auto& item : items) sources.push_back(planner->resolve(state, item));
      return sources;
    }
    void resolve_some(const state_dict& state, std::span<const write_item> items,
                      std::span<const std::size_t> which, std::span<item_source> sources) override {
      for (const auto i : which) sources[i] = planner->resolve(state, items[i]);
    }
    std::uint64_t fingerprint() const override { return std::as_const(*planner).fingerprint(); }
    bool resolves_by_binding() const noexcept override { return cairn::resolves_by_binding<Planner>; }
    std::shared_ptr<Planner> planner;
  };

  detail::owned<face> face_;
};

/// A LoadPlanner whose type is chosen at run time, and a LoadPlanner itself; made as any_save_planner is.
/// Each call costs a virtual one. One thread at a time.
class any_load_planner {
 public:
  using cairn_role = role::load_planner;

  template <class Planner>
    requires(!std::same_as<Planner, any_load_planner> && LoadPlanner<Planner>)
  explicit any_load_planner(Planner planner)
      : any_load_planner(detail::make_shared<Planner>(std::move(planner))) {}
  /// @pre planner is not null
  template <LoadPlanner Planner>
  explicit any_load_planner(std::shared_ptr<Planner> planner)
      : face_(new face_of<Planner>(std::move(planner))) {}

  // See LoadPlanner.
  [[nodiscard]] load_plan plan(const state_dict& state, const metadata& stored, const load_request& request);
  [[nodiscard]] item_target resolve(const state_dict& state, const metadata& stored, const read_item& item);
  /// See FingerprintedLoadPlanner; nothing where the planner does not model it; its plans are not kept then.
  [[nodiscard]] std::optional<std::uint64_t> fingerprint() const;

 private:
  struct face {
    face() = default;
    face(const face&) = delete;
    face& operator=(const face&) = delete;
    virtual ~face() = default;
    virtual load_plan plan(const state_dict& state, const metadata& stored, const load_request& request) = 0;
    virtual item_target resolve(const state_dict& state, const metadata& stored, const read_item& item) = 0;
    virtual std::optional<std::uint64_t> fingerprint() const = 0;
  };
  template <class Planner>
  struct face_of final : face {
    explicit face_of(std::shared_ptr<Planner> made) : planner(std::move(made)) {}
    load_plan plan(const state_dict& state, const metadata& stored, const load_request& request) override {
      return planner->plan(state, stored, request);
    }
    item_target resolve(const state_dict& state, const metadata& stored, const read_item& item) override {
      return planner->resolve(state, stored, item);
    }
    std::optional<std::uint64_t> fingerprint() const override {
      if constexpr (FingerprintedLoadPlanner<Planner>)
        return std::as_const(*planner).fingerprint();
      else
        return std::nullopt;
    }
    std::shared_ptr<Planner> planner;
  };

  detail::owned<face> face_;
};

/// Both roles of a checkpointer's planners.
struct any_planners {
  /// The save planner.
  any_save_planner save;
  /// The load planner; the same object as the save planner where one plays both roles.
  any_load_planner load;
};

/// One planner that plays both roles: one object behind both handles.
template <class Planner>
  requires(SavePlanner<Planner> && LoadPlanner<Planner>)
[[nodiscard]] any_planners both_roles_of(Planner planner) {
  const auto shared = detail::make_shared<Planner>(std::move(planner));
  return {any_save_planner(shared), any_load_planner(shared)};
}

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_planner.ipp>
#endif
