// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/vector.hpp>
#include <cairn/system/wire.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {

// What a save_job is made of, as bytes for the process that carries it out. Every decoder throws wire_error
// on bytes that are none.

void encode(wire_writer& out, const save_context& c);
/// What encode() of a save_context wrote; throws wire_error.
[[nodiscard]] save_context decode_save_context(wire_reader& in);

void encode(wire_writer& out, const image_layout& layout);
/// The result is sound in itself: segments and items lie in the image, in order, and digests among its
/// blocks.
[[nodiscard]] image_layout decode_image_layout(wire_reader& in);

void encode(wire_writer& out, const metadata& m);
/// What encode() of metadata wrote; throws wire_error.
[[nodiscard]] metadata decode_metadata(wire_reader& in);

/// What a worker did so far, and when, since it said so last.
void encode(wire_writer& out, const process_share& share, const detail::vector<save_span>& spans);
/// For reports only: what it says is checked for sense, not for truth. `process`: who sent it.
[[nodiscard]] process_share decode_share(wire_reader& in, std::int64_t process,
                                         detail::vector<save_span>& spans);

/// A place in shared memory; the descriptor goes beside the bytes.
void encode(wire_writer& out, const shared_place& place);
/// What encode() of a shared_place wrote; throws wire_error where `needed` bytes do not fit into it.
[[nodiscard]] shared_place decode_shared_place(wire_reader& in, std::uint64_t needed);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/job_message.ipp>
#endif
