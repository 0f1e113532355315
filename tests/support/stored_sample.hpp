// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/memory_store.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <support/saved_world.hpp>
#include <support/storage_conformance.hpp>
#include <utility>
#include <vector>

namespace cairn_test {

/// A checkpoint of two ranks, step 4, in memory, whose objects can be replaced. `Make{}(memory_store)` gives
/// the storage.
template <class Make>
struct stored_sample {
  cairn::memory_store objects;
  sample_world saved{2, 1};

  stored_sample() {
    auto storage = afresh();
    auto writer = storage.writer();
    world_save(writer, saved.states(), 4).run();
  }
  /// The store as another process finds it, which knows nothing of it yet.
  [[nodiscard]] auto afresh() { return Make{}(objects); }
  [[nodiscard]] std::vector<std::string> keys(std::string_view ending) {
    std::vector<std::string> found;
    for (const auto& o : objects.list(""))
      if (o.key.ends_with(ending)) found.push_back(o.key);
    return found;
  }
  [[nodiscard]] std::vector<std::byte> get(const std::string& key) {
    return *objects.read_all(key, 1u << 30);
  }
  void put(const std::string& key, const std::vector<std::byte>& bytes) {
    objects.remove(key);
    objects.put_new(key, bytes);
  }
  told_failure load() {
    return failure_of([&] {
      auto reader = afresh().reader();
      sample_world loaded(2, 9);
      load_world(reader, 4, loaded.states());
      if (!(loaded == saved)) throw std::runtime_error("wrong bytes were delivered");
    });
  }
  told_failure verify() {
    return failure_of([&] {
      auto reader = afresh().reader();
      auto opened = reader.open(4, reader.fetch(4));
      (void)reader.verify(opened, soon());
    });
  }
};

/// Places in a safetensors file, and what else may stand there in a valid header: another digit of a global shape,
/// another dtype of the same size.
inline std::vector<std::pair<std::size_t, std::byte>> other_shapes_in(const std::vector<std::byte>& file) {
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  std::vector<std::pair<std::size_t, std::byte>> changes;
  const auto add = [&](std::size_t at, int c) { changes.emplace_back(at, static_cast<std::byte>(c)); };
  const std::string shape = "global_shape\\\":[";
  for (auto at = text.find(shape); at != std::string::npos; at = text.find(shape, at + 1))
    for (auto digit = at + shape.size(); text[digit] != ']'; ++digit)
      if (text[digit] != ',') add(digit, text[digit] ^ 1);
  const std::string dtype = "\"dtype\":\"";
  for (auto at = text.find(dtype); at != std::string::npos; at = text.find(dtype, at + 1))
    if (const auto first = text[at + dtype.size()]; first == 'F' || first == 'U' || first == 'I')
      add(at + dtype.size(), first == 'I' ? 'U' : 'I');
  return changes;
}

inline bool is_corrupt(const told_failure& f) {
  return f.id && cairn::kind_of(*f.id) == cairn::error_kind::corrupt;
}

}  // namespace cairn_test
