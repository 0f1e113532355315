// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/any_storage.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/storage.hpp>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY any_writer any_storage::writer() const {
  return face_->writer();
}
CAIRN_BODY any_reader any_storage::reader() const {
  return face_->reader();
}
CAIRN_BODY std::string any_storage::describe() const {
  return face_->describe();
}

}  // namespace v1
}  // namespace cairn
