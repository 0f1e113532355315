// SPDX-License-Identifier: Apache-2.0
// The ByteStore conformance suite on every store, and what the concept refuses.
// threaded
// optimised
// cost: 13
#include <cairn/concepts/any_store.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>

#include "support/byte_store_archetype.hpp"
#include "support/byte_store_conformance.hpp"
#include "support/scratch_directory.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using cairn_test::scratch_directory;

struct file_on_disk {
  scratch_directory directory;
  cairn::file_store make() {
    return cairn::file_store{directory.path() + "/new/root", {.root = cairn::root_directory::make_parents}};
  }
};
struct file_on_tmpfs {
  scratch_directory directory{"/dev/shm"};
  cairn::file_store make() { return cairn::file_store{directory.path()}; }
};
struct file_buffered {
  scratch_directory directory;
  cairn::file_store make() {
    return cairn::file_store{directory.path(),
                             {.direct_io = false, .writes_in_flight = 1, .reads_in_flight = 1}};
  }
};
struct file_in_small_requests {
  scratch_directory directory;
  cairn::file_store make() {
    return cairn::file_store{
        directory.path() + "//",
        {.write_bytes = 64u << 10, .writes_in_flight = 8, .read_bytes = 64u << 10, .reads_in_flight = 8}};
  }
};
struct in_memory {
  cairn::memory_store store;
  cairn::memory_store make() { return store; }
};
struct archetype {
  cairn::memory_store store;
  cairn_test::byte_store_archetype make() { return cairn_test::byte_store_archetype::over(store); }
};

// Each differs from memory_store in one point, and is no ByteStore.
struct create_gives_nothing : cairn::memory_store {
  void create(std::string_view, std::uint64_t) {}
};
struct no_alignment : cairn::memory_store {
  void io_alignment() {}
};
struct no_min_part : cairn::memory_store {
  std::string min_write_bytes() { return {}; }
};
struct read_reports_by_value : cairn::memory_store {
  bool read(std::span<const cairn::read_range>) { return true; }
};
struct reads_one_range : cairn::memory_store {
  void read(const cairn::read_range&) {}
};
struct put_new_reports_by_value : cairn::memory_store {
  bool put_new(std::string_view, std::span<const std::byte>) { return true; }
};
struct publish_does_not_tell : cairn::memory_store {
  void publish_new(std::string_view, std::span<const std::byte>) {}
};
struct read_all_without_cap : cairn::memory_store {
  std::optional<std::vector<std::byte>> read_all(std::string_view) { return {}; }
};
struct size_without_absence : cairn::memory_store {
  std::uint64_t size(std::string_view) { return 0; }
};
struct list_without_sizes : cairn::memory_store {
  std::vector<std::string> list(std::string_view) { return {}; }
};
struct remove_reports_by_value : cairn::memory_store {
  bool remove(std::string_view) { return true; }
};
struct leftovers_counted : cairn::memory_store {
  std::size_t leftovers(std::string_view) { return 0; }
};
struct discard_reports_by_value : cairn::memory_store {
  int discard(std::string_view) { return 0; }
};
struct free_space_unknown : cairn::memory_store {
  cairn::space_left free_space() { return {}; }
};
struct describe_nothing : cairn::memory_store {
  void describe() {}
};
struct not_movable : cairn::memory_store {
  not_movable() = default;
  not_movable(const not_movable&) = delete;
};
struct writer_without_finish {
  void write(std::span<const cairn::write_range>) {}
};
struct writer_that_is_pinned {
  writer_that_is_pinned(const writer_that_is_pinned&) = delete;
  void write(std::span<const cairn::write_range>) {}
  void finish() {}
};
struct writer_that_counts {
  std::size_t write(std::span<const cairn::write_range>) { return 0; }
  void finish() {}
};

struct only_inherits : cairn::memory_store {};
static_assert(cairn::ByteStore<only_inherits>, "the base of the negative models must be good");
static_assert(!cairn::ByteStore<create_gives_nothing>);
static_assert(!cairn::ByteStore<no_alignment>);
static_assert(!cairn::ByteStore<no_min_part>);
static_assert(!cairn::ByteStore<read_reports_by_value>);
static_assert(!cairn::ByteStore<reads_one_range>);
static_assert(!cairn::ByteStore<put_new_reports_by_value>);
static_assert(!cairn::ByteStore<publish_does_not_tell>);
// Without that function it is a store, too; a handle then reads by size() and read().
static_assert(cairn::ByteStore<read_all_without_cap> && !cairn::ReadsWhole<read_all_without_cap>);
static_assert(!cairn::ByteStore<size_without_absence>);
static_assert(!cairn::ByteStore<list_without_sizes>);
static_assert(!cairn::ByteStore<remove_reports_by_value>);
static_assert(!cairn::ByteStore<leftovers_counted>);
static_assert(!cairn::ByteStore<discard_reports_by_value>);
static_assert(!cairn::ByteStore<free_space_unknown>);
static_assert(!cairn::ByteStore<describe_nothing>);
static_assert(!cairn::ByteStore<not_movable>);
static_assert(!cairn::ObjectWriter<writer_without_finish>);
static_assert(!cairn::ObjectWriter<writer_that_is_pinned>);
static_assert(!cairn::ObjectWriter<writer_that_counts>);

}  // namespace

namespace cairn_test {
TEST_CASE_TEMPLATE_INVOKE(byte_store_conformance, file_on_disk, file_on_tmpfs, file_buffered,
                          file_in_small_requests, in_memory, archetype);
}
