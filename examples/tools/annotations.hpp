// SPDX-License-Identifier: Apache-2.0
#pragma once
// How programs print what annotate() said.
#include <cairn/model/annotations.hpp>

#include <string>

#include "json.hpp"
#include "status.hpp"

namespace tools {

/// On one line, whatever it holds.
inline std::string annotation_text(const cairn::annotation_value& value) {
  std::string text = value.text();
  if (value.kind() == cairn::annotation_kind::boolean)
    text = value.integer() != 0 ? "true" : "false";
  else if (value.kind() == cairn::annotation_kind::integer)
    text = std::to_string(value.integer());
  else if (value.kind() == cairn::annotation_kind::real)
    text = number_text(*value.number());
  for (auto& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

/// As a member of an object.
inline void add_annotation(json_object& object, const std::string& name,
                           const cairn::annotation_value& value) {
  switch (value.kind()) {
    case cairn::annotation_kind::text:
      object.text(name, value.text());
      break;
    case cairn::annotation_kind::integer:
      object.step(name, value.integer());
      break;
    case cairn::annotation_kind::real:
      object.real(name, *value.number());
      break;
    case cairn::annotation_kind::boolean:
      object.truth(name, value.integer() != 0);
      break;
  }
}

}  // namespace tools
