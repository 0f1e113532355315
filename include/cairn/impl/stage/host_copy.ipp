// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/stage/copy_job.hpp>
#include <cairn/stage/copy_threads.hpp>
#include <cairn/stage/host_copy.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/thread_settings.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY host_copy::host_copy(host_copy_options options) {
  if (options.threads < 0 || options.threads > 1024)
    fail(error_id::usage_bad_option, "the number of copy threads is between 0 (choose) and 1024",
         {.got = std::to_string(options.threads)});
  detail::check_granted(options.thread);
  threads_ = detail::make_owned<detail::copy_threads>(
      options.threads > 0 ? options.threads : std::min(4, detail::usable_cores()),
      make_rate_limiter(options.bytes_per_second, std::move(options.clock)), std::move(options.thread));
}

CAIRN_BODY host_copy::host_copy(host_copy&& other) noexcept = default;
CAIRN_BODY host_copy& host_copy::operator=(host_copy&& other) noexcept = default;
CAIRN_BODY host_copy::~host_copy() = default;

CAIRN_BODY void host_copy::check(const item_source& source) const {
  check_host_readable(source);
}
CAIRN_BODY void host_copy::copy(std::shared_ptr<image_fill> fill, deadline until) {
  threads_->copy(std::move(fill), until);
}
CAIRN_BODY void host_copy::prepare(const source_table&) {
  threads_->prepare();
}

}  // namespace v1
}  // namespace cairn
