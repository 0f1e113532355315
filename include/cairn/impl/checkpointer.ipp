// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer.hpp>
#include <cairn/comm/single_process.hpp>
#include <cairn/execute/thread_executor.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/one_rank_planner.hpp>
#include <cairn/stage/heap_stager.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>
#if defined(CAIRN_COMPILED)
#include <cairn/stores/file_store.hpp>
#endif

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// safetensors_writer over a store whose type is not known here.
class default_writer final : public safetensors_writer_base {
 public:
  default_writer(any_store store, const commit_options& options, writer_origin origin)
      : safetensors_writer_base(store, options), store_(std::move(store)), origin_(std::move(origin)) {}

  // See RemadeByMaker.
  [[nodiscard]] writer_maker maker() const noexcept { return origin_.maker; }
  [[nodiscard]] std::string_view type_name() const noexcept { return origin_.type_name; }
  [[nodiscard]] std::vector<std::byte> description() const {
    if (origin_.describe == nullptr)
      fail(error_id::usage_bad_option, "this store cannot be used by a worker process: save on a thread",
           {.file = store_.describe()});
    wire_writer out;
    encode_options(out, options());
    return out.raw(origin_.describe(origin_.store.get())).take();
  }

 private:
  any_store store_;
  writer_origin origin_;
};
static_assert(RemadeByMaker<default_writer>);

class default_storage {
 public:
  default_storage(any_store store, writer_origin origin)
      : inner_(std::move(store)), origin_(std::move(origin)) {}
  [[nodiscard]] default_writer writer() const { return {inner_.store(), {}, origin_}; }
  [[nodiscard]] safetensors_reader reader() const { return inner_.reader(); }
  [[nodiscard]] std::string describe() const { return inner_.describe(); }

 private:
  safetensors_storage<any_store> inner_;
  writer_origin origin_;
};

/// The default storage of a rank that is alone and saves in its own process. A reader that verifies nothing compiles nothing
/// of that.
template <bool Verifies>
class one_rank_storage {
 public:
  class writer_type final : public safetensors_writer_base {
   public:
    explicit writer_type(any_store store) : safetensors_writer_base(std::move(store), files_of_own()) {}
  };
  class verifying_reader : public safetensors_reader {
   public:
    using safetensors_reader::safetensors_reader;
    void read_shared() = delete;  // nobody to share with; see SharingReader
  };
  class plain_reader final : public verifying_reader {
   public:
    using verifying_reader::verifying_reader;
    std::uint64_t verify(safetensors_reader::checkpoint_type&, deadline) {
      fail(error_id::usage_bad_option, "this checkpointer verifies nothing");
    }
  };
  using reader_type = std::conditional_t<Verifies, verifying_reader, plain_reader>;
  explicit one_rank_storage(any_store store) : store_(std::move(store)) {}
  [[nodiscard]] writer_type writer() const { return writer_type(store_); }
  [[nodiscard]] reader_type reader() const { return reader_type(store_); }
  [[nodiscard]] std::string describe() const { return std::string(store_.describe()); }

 private:
  any_store store_;
};

CAIRN_BODY any_planners make_planners_of_one_rank() {
  return both_roles_of(one_rank_planner());
}
CAIRN_BODY any_storage make_storage_of_one_rank(any_store store) {
  return any_storage(one_rank_storage<false>(std::move(store)));
}
template <class>
any_storage make_verified_storage_of_one_rank(any_store store) {
  return any_storage(one_rank_storage<true>(std::move(store)));
}
CAIRN_BODY any_planners make_default_planners() {
  return both_roles_of(default_planner());
}
CAIRN_BODY any_stager make_default_stager() {
  return any_stager(heap_stager());
}
CAIRN_BODY any_executor make_default_executor() {
  return any_executor(thread_executor());
}
CAIRN_BODY any_communicator make_default_communicator() {
  return any_communicator(single_process());
}
CAIRN_BODY any_observer make_default_observer() {
  return any_observer(no_observer());
}
template <class>
any_storage make_default_storage(any_store store, writer_origin origin) {
  return any_storage(default_storage(std::move(store), std::move(origin)));
}
CAIRN_BODY engine_owner make_default_engine(any_storage storage) {
  return make_engine({.storage = std::move(storage),
                      .planners = make_planners_of_one_rank(),
                      .stager = make_default_stager(),
                      .executor = make_default_executor(),
                      .communicator = make_default_communicator(),
                      .observer = make_default_observer(),
                      .options = {},
                      .keep = {},
                      .devices = nullptr,
                      .group = parts_of_one_rank()});
}
CAIRN_BODY any_writer make_default_writer(std::span<const std::byte> description,
                                          any_store (*make)(std::span<const std::byte>)) {
  wire_reader in(description);
  const auto options = decode_options(in);
  // A writer that was made from a description gives none itself.
  return any_writer(
      safetensors_writer<any_store>(detail::make_shared<any_store>(make(in.take(in.left()))), options));
}

#if defined(CAIRN_COMPILED)
template any_storage make_default_storage<void>(any_store store, writer_origin origin);
template any_storage make_verified_storage_of_one_rank<void>(any_store store);
template any_storage default_storage_over(file_store store);
template any_storage storage_of_one_rank_over(file_store store, any_storage (*make)(any_store));
#endif

}  // namespace detail
}  // namespace v1
}  // namespace cairn
