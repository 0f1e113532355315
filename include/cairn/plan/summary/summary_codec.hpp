// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_codec.hpp>
#include <cairn/plan/summary/summary.hpp>

namespace cairn {
inline namespace v1 {

/// A summary as a message: names front-coded, numbers in as few bytes as they need. A tensor in a mesh takes
/// about 30 bytes.
void encode(compact_writer& out, const plan_summary& summary);

/// @throws wire_error on bytes that encode would not write. Whether ranks agree, and boxes lie inside of
/// their tensors, is validated when the global summary is complete. Allocates about twenty times the input,
/// and detail::max_shared_names.
[[nodiscard]] plan_summary decode_plan_summary(compact_reader& in);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/summary/summary_codec.ipp>
#endif
