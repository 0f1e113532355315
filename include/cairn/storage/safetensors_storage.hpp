// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/storage/safetensors_writer.hpp>
#include <cairn/system/shared.hpp>

#include <memory>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

/// The default Storage: checkpoints as safetensors files in a ByteStore. Copies, writers and readers share
/// the store.
template <ByteStore Store>
class safetensors_storage {
 public:
  using cairn_role = role::storage;

  /// @throws usage_bad_option
  explicit safetensors_storage(Store store, commit_options options = {})
      : store_(detail::make_shared<Store>(std::move(store))), options_(options) {
    check_options(options, any_store(store_).shares(), describe());
  }

  [[nodiscard]] safetensors_writer<Store> writer() const {
    return safetensors_writer<Store>(store_, options_);
  }
  [[nodiscard]] safetensors_reader reader() const { return safetensors_reader(store_); }
  /// The description of the store, for messages.
  [[nodiscard]] std::string describe() const { return std::string(store_->describe()); }
  [[nodiscard]] Store& store() const noexcept { return *store_; }

 private:
  std::shared_ptr<Store> store_;
  commit_options options_;
};

}  // namespace v1
}  // namespace cairn
