// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/concepts/portable.hpp>

#include <array>
#include <span>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A writer that a worker_program can construct, by the name of its type.
struct known_writer {
  std::string_view type;
  writer_maker maker;
};
/// main() of a program that is only a worker.
int run_worker_program(int argc, const char* const* argv, std::span<const known_writer> known) noexcept;

}  // namespace detail

/// The first line of main() in a program that uses process_executor: returns at once in the trainer; in the
/// worker, which is the same program started again, it does not return. Call it before anything that must
/// happen once only (MPI_Init, opening ports, touching devices).
void worker_main(int argc, const char* const* argv) noexcept;

/// main() of a program that is nothing but a worker, for trainers whose main() is not theirs (a plugin, a
/// Python extension): `int main(int argc, char** argv) { return cairn::worker_program_main<Writers...>(argc,
/// argv); }` with the type of each writer, such as safetensors_writer<file_store>. Give its path to the
/// executor as worker_program.
template <class... Writers>
  requires(sizeof...(Writers) > 0 && (Portable<Writers> && ...))
int worker_program_main(int argc, const char* const* argv) noexcept {
  static constexpr std::array<detail::known_writer, sizeof...(Writers)> known{
      detail::known_writer{detail::writer_type_name<Writers>(), &any_writer::made_of<Writers>}...};
  return detail::run_worker_program(argc, argv, known);
}

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/worker_main.ipp>
#endif
