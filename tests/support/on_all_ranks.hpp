// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairn_test {

/// Runs body(rank) on a thread for each of `count` ranks and waits for all; what each threw, or null.
/// `first`: where to put the failure that came first, which may be the reason of the others.
template <class Body>
std::vector<std::exception_ptr> thrown_on_ranks(int count, const Body& body,
                                                std::exception_ptr* first = nullptr) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(count));
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          const std::lock_guard lock(mutex);
          auto& mine = thrown[static_cast<std::size_t>(rank)] = std::current_exception();
          if (first != nullptr && !*first) *first = mine;
        }
      });
  }
  return thrown;
}

/// The same; throws the failure that came first.
template <class Body>
void on_all_ranks(int count, const Body& body) {
  std::exception_ptr first;
  thrown_on_ranks(count, body, &first);
  if (first) std::rethrow_exception(first);
}

/// The same; what each rank threw as text, empty where it threw nothing.
template <class Body>
std::vector<std::string> said_on_ranks(int count, const Body& body) {
  std::vector<std::string> said;
  for (auto& each : thrown_on_ranks(count, body)) {
    std::string text;
    try {
      if (each) std::rethrow_exception(std::exchange(each, nullptr));
    } catch (const std::exception& e) {
      text = e.what();
    }
    said.push_back(std::move(text));
  }
  return said;
}

}  // namespace cairn_test
