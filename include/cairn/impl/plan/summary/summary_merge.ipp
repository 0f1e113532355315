// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/progression_joiner.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/plan/summary/summary_merge.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Merges summaries item by item.
class summary_merge {
 public:
  summary_merge(const plan_summary& a, const plan_summary& b);

  [[nodiscard]] plan_summary run();

 private:
  struct sink {
    plan_summary* out;
    std::uint32_t* made;
    void operator()(const chunk_progression& p) const;
  };

  void both(std::size_t i, std::size_t k);

  /// The progressions of both, joined where the ranks of a end and those of b begin. Long lists are irregular
  /// boxes, of which only those at the border are looked at.
  std::uint32_t lists(std::size_t& at_a, std::uint32_t of_a, std::size_t& at_b, std::uint32_t of_b);

  const plan_summary& a_;
  const plan_summary& b_;
  plan_summary out_;
  std::uint32_t made_ = 0;
  progression_joiner<sink> joiner_;
};

inline summary_merge::summary_merge(const plan_summary& a, const plan_summary& b)
    : a_(a), b_(b), joiner_(sink{&out_, &made_}) {
  // Boxes without a pattern are all kept, so reserve for both; pages that are not used are never touched.
  out_.reserve(std::max(a.size(), b.size()), std::max(a.names(), b.names()), a.words() + b.words());
}

inline plan_summary summary_merge::run() {
  std::size_t i = 0;
  std::size_t k = 0;
  while (i < a_.size() && k < b_.size()) {
    const int order = compare(a_.name(i), a_[i], b_.name(k), b_[k]);
    if (order < 0)
      out_.append_item(a_, i++);
    else if (order > 0)
      out_.append_item(b_, k++);
    else
      both(i++, k++);
  }
  while (i < a_.size()) out_.append_item(a_, i++);
  while (k < b_.size()) out_.append_item(b_, k++);
  return std::move(out_);
}

inline void summary_merge::sink::operator()(const chunk_progression& p) const {
  out->append(p);
  ++*made;
}

inline void summary_merge::both(std::size_t i, std::size_t k) {
  auto& item = out_.add(a_.name(i), a_[i]);
  auto at_a = a_[i].words;
  auto at_b = b_[k].words;
  item.boxes = lists(at_a, a_[i].boxes, at_b, b_[k].boxes);
  item.without = lists(at_a, a_[i].without, at_b, b_[k].without);
}

inline std::uint32_t summary_merge::lists(std::size_t& at_a, std::uint32_t of_a, std::size_t& at_b,
                                          std::uint32_t of_b) {
  if (of_a == 0 || of_b == 0) {
    out_.append(a_, at_a, of_a);
    out_.append(b_, at_b, of_b);
    return of_a + of_b;
  }
  constexpr auto window = static_cast<std::uint32_t>(progression_joiner<sink>::window);
  made_ = 0;
  const auto before = of_a - std::min(of_a, window);
  out_.append(a_, at_a, before);
  for (auto n = before; n < of_a; ++n) joiner_.add(a_.read(at_a));
  const auto joined = std::min(of_b, window);
  for (std::uint32_t n = 0; n < joined; ++n) joiner_.push(b_.read(at_b));
  joiner_.flush();
  out_.append(b_, at_b, of_b - joined);
  return before + made_ + (of_b - joined);
}

}  // namespace detail

CAIRN_BODY plan_summary merge_summaries(plan_summary a, plan_summary b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return detail::summary_merge(a, b).run();
}

}  // namespace v1
}  // namespace cairn
