// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>

namespace cairn {
inline namespace v1 {

/// Carries out one rank's part of a save, in the calling thread, from the image to the commit. Its progress
/// ends in committed or failed; a failure is told to the other ranks. The image's buffers are given back as
/// soon as the bytes are durable. Every executor ends here.
void run_save_job(save_job job) noexcept;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/execute/run_save_job.ipp>
#endif
