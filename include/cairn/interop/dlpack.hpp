// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors of other libraries as tensor_views, and tensor_views as tensors of other libraries, over DLPack
// (https://dmlc.github.io/dlpack): view_of borrows, import_tensor owns, export_tensor hands over.
//
// Everything takes any struct that has the members of DLPack's: those of <dlpack/dlpack.h> of any release
// since 0.4, those that PyTorch brings in <ATen/dlpack.h>, or those below, for programs that have no such
// header. So cairn needs none, and no release of it is too old or too new.
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/error.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace dlpack {

/// The structs of DLPack's stable interface, with its names, order and layout: a pointer to one of them and
/// to its twin of <dlpack/dlpack.h> are the same to a C interface or a Python capsule.
struct device {
  std::int32_t device_type;
  std::int32_t device_id;
};
/// DLPack's DLDataType.
struct data_type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
/// DLPack's DLTensor.
struct tensor {
  void* data;
  dlpack::device device;
  std::int32_t ndim;
  data_type dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
/// What "dltensor" capsules hold.
struct managed_tensor {
  tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(managed_tensor*);
};
/// DLPack's DLPackVersion.
struct pack_version {
  std::uint32_t major;  ///< another one is another layout: consumers must refuse it
  std::uint32_t minor;  ///< higher ones only add flags and types
};
/// What "dltensor_versioned" capsules hold, since DLPack 1.0.
struct versioned_managed_tensor {
  pack_version version;
  void* manager_ctx;
  void (*deleter)(versioned_managed_tensor*);
  std::uint64_t flags;
  tensor dl_tensor;
};
static_assert(sizeof(tensor) == 48 && offsetof(tensor, byte_offset) == 40);
static_assert(sizeof(managed_tensor) == 64 && sizeof(versioned_managed_tensor) == 80);

/// A struct with the members of DLPack's DLTensor.
template <class T>
concept Tensor = requires(const T& t) {
  { t.data } -> std::convertible_to<void*>;
  static_cast<std::int32_t>(t.device.device_type);
  { t.device.device_id } -> std::convertible_to<std::int32_t>;
  { t.ndim } -> std::convertible_to<std::int32_t>;
  { t.dtype.code } -> std::convertible_to<unsigned>;
  { t.dtype.bits } -> std::convertible_to<unsigned>;
  { t.dtype.lanes } -> std::convertible_to<unsigned>;
  { t.shape } -> std::convertible_to<const std::int64_t*>;
  { t.strides } -> std::convertible_to<const std::int64_t*>;
  { t.byte_offset } -> std::convertible_to<std::uint64_t>;
};
/// A struct with the members of DLManagedTensor or DLManagedTensorVersioned.
template <class M>
concept ManagedTensor = requires(M& m) {
  { m.dl_tensor } -> Tensor;
  { m.manager_ctx } -> std::convertible_to<void*>;
  m.deleter(&m);
};
/// One with a version and flags.
template <class M>
concept VersionedManagedTensor = ManagedTensor<M> && requires(M& m) {
  m.version.major;
  { m.flags } -> std::convertible_to<std::uint64_t>;
};

inline constexpr std::uint64_t read_only_flag = 1;       ///< the consumer must not write
inline constexpr std::uint64_t subbyte_padded_flag = 4;  ///< elements below a byte take a byte each
inline constexpr pack_version written_version{1, 1};     ///< what export_tensor fills in
/// DLPack's DLDeviceType, those that cairn knows.
enum class device_kind : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };

/// The dtype of DLPack's (code, bits), or nothing where cairn has none.
[[nodiscard]] constexpr std::optional<dtype> dtype_from(unsigned code, unsigned bits) noexcept;
/// The reverse; every dtype has one. lanes is 1.
[[nodiscard]] constexpr data_type data_type_of(dtype type) noexcept;

namespace detail {
struct code_row {
  dtype type;
  std::uint8_t code;
};
// Signed integers are 0, unsigned ones 1, IEEE floats 2.
inline constexpr std::array<code_row, 20> code_table{{
    {dtype::boolean, 6},  {dtype::u8, 1},       {dtype::i8, 0},       {dtype::i16, 0},
    {dtype::u16, 1},      {dtype::i32, 0},      {dtype::u32, 1},      {dtype::i64, 0},
    {dtype::u64, 1},      {dtype::f16, 2},      {dtype::bf16, 4},     {dtype::f32, 2},
    {dtype::f64, 2},      {dtype::c64, 5},      {dtype::f8_e5m2, 12}, {dtype::f8_e4m3, 10},
    {dtype::f8_e8m0, 14}, {dtype::f6_e2m3, 15}, {dtype::f6_e3m2, 16}, {dtype::f4, 17},
}};
static_assert(code_table.size() == static_cast<std::size_t>(last_dtype) + 1);

struct call_deleter {
  template <class M>
  void operator()(M* m) const noexcept {
    if (m->deleter != nullptr) m->deleter(m);
  }
};

[[noreturn]] inline void refuse(const char* sentence, std::string got = {}) {
  fail(error_id::usage_unsupported_tensor, sentence, {.got = std::move(got)});
}

/// Checks that every address of the view, and one step beyond each dimension, can be computed.
inline void check_reach(const tensor_view& view, std::uint64_t first) {
  std::int64_t low = 0;
  std::int64_t high = 1;
  bool overflow = false;
  for (int d = 0; d < view.shape.rank(); ++d) {
    std::int64_t reach = 0;
    overflow |= __builtin_mul_overflow(view.shape[d], view.strides[static_cast<std::size_t>(d)], &reach);
    std::int64_t& side = reach < 0 ? low : high;
    overflow |= __builtin_add_overflow(side, reach, &side);
  }
  const auto bits = static_cast<std::int64_t>(bits_of(view.type));
  overflow |= __builtin_mul_overflow(low, bits, &low) || __builtin_mul_overflow(high, bits, &high);
  const auto below = static_cast<std::uint64_t>(-(low / 8));
  const auto above = static_cast<std::uint64_t>(high / 8 + 1);
  if (overflow || below > first || above > std::numeric_limits<std::uintptr_t>::max() - first)
    refuse("the strides of a tensor lead out of the address space");
}
}  // namespace detail

constexpr std::optional<dtype> dtype_from(unsigned code, unsigned bits) noexcept {
  for (const auto& row : detail::code_table)
    if (row.code == code && bits_of(row.type) == bits) return row.type;
  return std::nullopt;
}

constexpr data_type data_type_of(dtype type) noexcept {
  const auto& row = detail::code_table[static_cast<std::size_t>(type)];
  return {row.code, static_cast<std::uint8_t>(bits_of(type)), 1};
}

/// The view of a tensor that another library holds. CPU memory is memory_space::host, CUDA host memory is
/// pinned, CUDA memory is device, managed memory too. Strides are elements, as in a tensor_view; without
/// strides the tensor is row-major. Any thread. The memory must outlive every use of the view; shape and
/// strides are copied.
/// @throws usage_error: usage_unsupported_tensor for a dtype, device or lanes that cairn has no name for, and
/// for null pointers and strides out of the address space; usage_bad_shape for a shape that is negative, has
/// more than eight dimensions or more than 2^63 bits.
template <Tensor T>
[[nodiscard]] tensor_view view_of(const T& t) {
  tensor_view view;
  if (t.ndim < 0 || t.ndim > extents::max_rank)
    fail(error_id::usage_bad_shape, "a DLPack tensor has a negative number of dimensions, or more than eight",
         {.got = std::to_string(t.ndim)});
  const auto rank = static_cast<std::size_t>(t.ndim);
  const std::int64_t* const shape = t.shape;
  const std::int64_t* const strides = t.strides;
  if (rank != 0 && shape == nullptr) detail::refuse("a DLPack tensor has dimensions but no shape");
  if (rank != 0) view.shape = extents(std::span<const std::int64_t>(shape, rank));
  const unsigned code = t.dtype.code;
  const unsigned bits = t.dtype.bits;
  if (t.dtype.lanes != 1)
    detail::refuse("a DLPack tensor has vectors as its elements; give the lanes a dimension of their own",
                   "lanes " + std::to_string(t.dtype.lanes));
  const auto type = dtype_from(code, bits);
  if (!type)
    detail::refuse("cairn has no dtype for the elements of a DLPack tensor; convert it, or save it as bytes",
                   "code " + std::to_string(code) + ", bits " + std::to_string(bits));
  view.type = *type;
  if (!checked_bytes(view.type, view.shape))
    fail(error_id::usage_bad_shape,
         "a DLPack tensor is larger than 2^63 bits, or its packed elements do not fill whole bytes",
         {.got = to_string(view.shape)});
  const auto kind = static_cast<std::int32_t>(t.device.device_type);
  switch (static_cast<device_kind>(kind)) {
    case device_kind::cpu:
      break;
    case device_kind::cuda:
    case device_kind::cuda_managed:  // the CPU would read it with no order to the streams that write it
      view.space = memory_space::device;
      view.device = t.device.device_id;
      break;
    case device_kind::cuda_host:
      view.space = memory_space::pinned;
      break;
    default:
      detail::refuse("a DLPack tensor is on a kind of device that cairn does not know; copy it to the CPU",
                     "device type " + std::to_string(kind));
  }
  const std::int64_t volume = view.shape.volume();
  if (volume == 0) {
    view.strides.fill(1);  // never used; those given may be anything
    view.data = static_cast<std::byte*>(t.data);
    return view;
  }
  if (t.data == nullptr) detail::refuse("the address of a DLPack tensor is null");
  std::int64_t row = 1;
  for (int d = view.shape.rank() - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    view.strides[i] = strides == nullptr || view.shape[d] == 1 ? row : strides[i];
    row *= view.shape[d];
  }
  if (granule_of(view.type) != 1 && !view.contiguous())
    detail::refuse("a DLPack tensor of a packed type has strides; make it contiguous");
  std::uint64_t first = 0;
  if (__builtin_add_overflow(reinterpret_cast<std::uintptr_t>(t.data), std::uint64_t{t.byte_offset}, &first))
    detail::refuse("the byte_offset of a DLPack tensor leads out of the address space",
                   std::to_string(t.byte_offset));
  detail::check_reach(view, first);
  view.data = static_cast<std::byte*>(t.data) + t.byte_offset;
  return view;
}

/// Whether import_tensor takes tensors that are marked as read-only: they can be saved; a load must not be
/// given their view.
enum class read_only_tensors : bool { refuse, accept };

/// A tensor of another library, held. Its destructor calls the deleter, on the thread where it runs.
template <ManagedTensor M>
class imported_tensor {
 public:
  /// As import_tensor.
  explicit imported_tensor(M* managed, read_only_tensors read_only = read_only_tensors::refuse)
      : managed_(managed) {
    if (managed == nullptr) detail::refuse("the pointer to a DLPack tensor is null");
    if constexpr (VersionedManagedTensor<M>) {
      // Of another major version only the deleter may be used.
      if (managed->version.major != written_version.major)
        detail::refuse("a DLPack tensor has another major version than 1",
                       std::to_string(managed->version.major) + "." + std::to_string(managed->version.minor));
      if ((managed->flags & read_only_flag) != 0 && read_only == read_only_tensors::refuse)
        detail::refuse(
            "a DLPack tensor is read-only, so no load may fill it; to save it, import it with "
            "cairn::dlpack::read_only_tensors::accept");
      if ((managed->flags & subbyte_padded_flag) != 0 && managed->dl_tensor.dtype.bits < 8)
        detail::refuse("a DLPack tensor has a byte for each element below a byte; cairn keeps them packed");
    }
    view_ = view_of(managed->dl_tensor);
  }
  imported_tensor(imported_tensor&& other) noexcept
      : managed_(std::move(other.managed_)), view_(std::exchange(other.view_, {})) {}
  imported_tensor& operator=(imported_tensor&& other) noexcept {
    managed_ = std::move(other.managed_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }
  /// Good as long as this object lives (a moved-from one has an empty view).
  [[nodiscard]] const tensor_view& view() const noexcept { return view_; }
  /// The producer forbids writing.
  [[nodiscard]] bool read_only() const noexcept {
    if constexpr (VersionedManagedTensor<M>)
      return managed_ != nullptr && (managed_->flags & read_only_flag) != 0;
    else
      return false;
  }

 private:
  std::unique_ptr<M, detail::call_deleter> managed_;
  tensor_view view_;
};

/// Takes over a tensor that another library exported: its deleter is called exactly once, when the result is
/// destroyed, or before this throws. Any thread; one small copy of shape and strides, none of the data.
/// @throws as view_of does; usage_error (usage_unsupported_tensor) for null, for a major version other than
/// 1, for padded elements below a byte, and for a read-only tensor unless those are accepted.
template <ManagedTensor M>
[[nodiscard]] imported_tensor<M> import_tensor(M* managed,
                                               read_only_tensors read_only = read_only_tensors::refuse) {
  return imported_tensor<M>(managed, read_only);
}

namespace detail {
template <class M>
struct exported {
  M managed{};
  std::array<std::int64_t, extents::max_rank> shape{};
  std::array<std::int64_t, extents::max_rank> strides{};
  std::shared_ptr<void> owner;
  static void destroy(M* m) noexcept { delete static_cast<exported*>(m->manager_ctx); }
};
}  // namespace detail

/// A tensor to hand over; `release()` it where the consumer has taken it.
template <ManagedTensor M>
using exported_tensor = std::unique_ptr<M, detail::call_deleter>;

/// The view as a tensor for another library, without a copy of the data. The memory must live until the
/// consumer has called the deleter: `owner`, if given, is kept until then and dropped by it, on the
/// consumer's thread. byte_offset is 0; memory_space::pinned becomes CUDA host memory. Any thread; one
/// allocation.
/// @throws usage_error (usage_bad_shape) if packed elements have strides. `read_only` needs a versioned M.
template <ManagedTensor M = versioned_managed_tensor>
[[nodiscard]] exported_tensor<M> export_tensor(const tensor_view& view, std::shared_ptr<void> owner = {},
                                               bool read_only = false) {
  if (!checked_bytes(view.type, view.shape) || (granule_of(view.type) != 1 && !view.contiguous()))
    fail(error_id::usage_bad_shape,
         "a view is larger than 2^63 bits, or its packed elements have strides or do not fill whole bytes",
         {.got = to_string(view.shape)});
  if (read_only && !VersionedManagedTensor<M>)
    fail(error_id::usage_bad_option,
         "only versioned DLPack tensors can be read-only: export_tensor<DLManagedTensorVersioned>");
  auto made = std::make_unique<detail::exported<M>>();
  made->owner = std::move(owner);
  for (int d = 0; d < view.shape.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    made->shape[i] = view.shape[d];
    made->strides[i] = view.strides[i];
  }
  M& m = made->managed;
  m.manager_ctx = made.get();
  m.deleter = &detail::exported<M>::destroy;
  if constexpr (VersionedManagedTensor<M>) {
    m.version.major = written_version.major;
    m.version.minor = written_version.minor;
    m.flags = read_only ? read_only_flag : 0;
  }
  auto& t = m.dl_tensor;
  const auto kind = view.space == memory_space::device   ? device_kind::cuda
                    : view.space == memory_space::pinned ? device_kind::cuda_host
                                                         : device_kind::cpu;
  t.data = view.data;
  t.device.device_type = static_cast<decltype(t.device.device_type)>(static_cast<std::int32_t>(kind));
  t.device.device_id = view.space == memory_space::device && view.device > 0 ? view.device : 0;
  t.ndim = view.shape.rank();
  const auto type = data_type_of(view.type);
  t.dtype.code = type.code;
  t.dtype.bits = type.bits;
  t.dtype.lanes = type.lanes;
  t.shape = made->shape.data();
  t.strides = made->strides.data();
  t.byte_offset = 0;
  return exported_tensor<M>(&made.release()->managed);
}

}  // namespace dlpack
}  // namespace v1
}  // namespace cairn
