// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/storage.hpp>
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/storage/foreign/foreign_checkpoint.hpp>
#include <cairn/storage/foreign/foreign_reader.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY readable_checkpoint::readable_checkpoint(safetensors_reader reader, std::int64_t step)
    : step_(step), reader_(std::move(reader)) {
  stored_.emplace(reader_->open(step, reader_->fetch(step)));
}

CAIRN_BODY readable_checkpoint::readable_checkpoint(foreign_reader files) : files_(std::move(files)) {
  foreign_.emplace(files_->open(0, files_->fetch(0)));
}

CAIRN_BODY const cairn::metadata& readable_checkpoint::metadata() const noexcept {
  return stored_ ? stored_->metadata() : foreign_->metadata();
}

CAIRN_BODY const stored_checkpoint* readable_checkpoint::with_records() {
  if (!stored_) return nullptr;
  (void)reader_->load_records(*stored_, deadline::never());
  return &*stored_;
}

CAIRN_BODY std::uint64_t readable_checkpoint::read(const load_plan& plan, const target_resolver& resolver,
                                                   std::uint64_t memory_bytes) {
  read_options options;
  options.memory_budget = memory_bytes;
  return stored_ ? reader_->read(*stored_, state_dict(), plan, resolver, options, deadline::never())
                 : files_->read(*foreign_, state_dict(), plan, resolver, options, deadline::never());
}

}  // namespace v1
}  // namespace cairn
