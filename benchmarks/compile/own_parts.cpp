// SPDX-License-Identifier: Apache-2.0
// A store and a planner of the user's own in place of the library's.
#include <cairn/cairn.hpp>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

class map_store {
  using bytes_type = std::vector<std::byte>;
  struct shared {
    std::mutex mutex;
    std::map<std::string, bytes_type, std::less<>> objects;
  };

 public:
  using cairn_role = cairn::role::store;
  class writer {
   public:
    writer(std::shared_ptr<shared> s, std::string_view key) : shared_(std::move(s)), key_(key) {}
    void write(std::span<const cairn::write_range> parts) {
      for (const auto& p : parts) {
        if (bytes_.size() < p.offset + p.bytes.size()) bytes_.resize(p.offset + p.bytes.size());
        std::memcpy(bytes_.data() + p.offset, p.bytes.data(), p.bytes.size());
      }
    }
    void finish() {
      const std::lock_guard lock(shared_->mutex);
      shared_->objects.emplace(key_, std::move(bytes_));
    }

   private:
    std::shared_ptr<shared> shared_;
    std::string key_;
    bytes_type bytes_;
  };

  writer create(std::string_view key, std::uint64_t) { return {shared_, key}; }
  std::size_t io_alignment() { return 1; }
  std::size_t min_write_bytes() { return 1; }
  void read(std::span<const cairn::read_range> ranges) {
    const std::lock_guard lock(shared_->mutex);
    for (const auto& r : ranges)
      std::memcpy(r.destination.data(), shared_->objects.find(r.key)->second.data() + r.offset,
                  r.destination.size());
  }
  void put_new(std::string_view key, std::span<const std::byte> bytes) { publish_new(key, bytes); }
  bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    const std::lock_guard lock(shared_->mutex);
    return shared_->objects.try_emplace(std::string(key), bytes.begin(), bytes.end()).second;
  }
  std::optional<bytes_type> read_all(std::string_view key, std::uint64_t) {
    const std::lock_guard lock(shared_->mutex);
    const auto at = shared_->objects.find(key);
    return at == shared_->objects.end() ? std::nullopt : std::optional(at->second);
  }
  std::optional<std::uint64_t> size(std::string_view key) {
    const auto bytes = read_all(key, UINT64_MAX);
    return bytes ? std::optional<std::uint64_t>(bytes->size()) : std::nullopt;
  }
  std::vector<cairn::listed_object> list(std::string_view prefix) {
    const std::lock_guard lock(shared_->mutex);
    std::vector<cairn::listed_object> listed;
    for (auto at = shared_->objects.lower_bound(prefix);
         at != shared_->objects.end() && at->first.starts_with(prefix); ++at)
      listed.push_back({at->first, at->second.size()});
    return listed;
  }
  void remove(std::string_view key) {
    const std::lock_guard lock(shared_->mutex);
    shared_->objects.erase(std::string(key));
  }
  std::vector<std::string> leftovers(std::string_view) { return {}; }
  void discard(std::string_view) {}
  std::optional<cairn::space_left> free_space() { return std::nullopt; }
  std::string describe() { return "a map"; }

 private:
  std::shared_ptr<shared> shared_ = std::make_shared<shared>();
};

struct half_planner : cairn::basic_planner<half_planner> {
  std::optional<std::string> stored_name(const cairn::state_entry& entry) const {
    return "model." + entry.name;
  }
  cairn::dtype stored_dtype(const cairn::state_entry& entry) const {
    return entry.type == cairn::dtype::f32 ? cairn::dtype::bf16 : entry.type;
  }
};

int main() {
  std::vector<float> weights(512 * 64);
  cairn::state_dict state;
  state.tensor("weights", weights, {512, 64});
  cairn::checkpointer ckpt{map_store{}, half_planner{}};
  ckpt.save(state, 1).wait();
  ckpt.close();
}
