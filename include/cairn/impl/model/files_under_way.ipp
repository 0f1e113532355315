// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/files_under_way.hpp>

#include <mutex>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY files_under_way::note::note(files_under_way& owner, std::string key) : owner_(&owner) {
  const std::lock_guard lock(owner.mutex_);
  at_ = owner.keys_.insert(owner.keys_.end(), std::move(key));
}

CAIRN_BODY files_under_way::note::~note() {
  const std::lock_guard lock(owner_->mutex_);
  owner_->keys_.erase(at_);
}

CAIRN_BODY std::string files_under_way::first() const {
  const std::lock_guard lock(mutex_);
  return keys_.empty() ? std::string() : keys_.front();
}

}  // namespace v1
}  // namespace cairn
