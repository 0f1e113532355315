// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smallest types that satisfy Storage, StorageWriter and StorageReader. They withhold what the real ones
// have: copying, default construction, calls on temporaries, more than the concepts' functions. Generic code
// that compiles with them asks for nothing but the concepts.
#include <cairn/concepts/roles.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/memory_store.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// Can be moved, nothing else.
struct move_only {
  move_only() = default;
  move_only(const move_only&) = delete;
  move_only& operator=(const move_only&) = delete;
  move_only(move_only&&) = default;
  move_only& operator=(move_only&&) = default;
};

class storage_writer_archetype : move_only {
 public:
  cairn::image_layout layout(const cairn::save_plan& plan, std::span<const std::uint64_t> item_bytes,
                             int rank) const& {
    return inner_.layout(plan, item_bytes, rank);
  }
  std::uint64_t fingerprint() const& { return inner_.fingerprint(); }
  cairn::record write(const cairn::save_context& c, const cairn::staged_image& image,
                      cairn::deadline until) & {
    return inner_.write(c, image, until);
  }
  void commit(const cairn::save_context& c, const cairn::metadata& stored, cairn::deadline until) & {
    inner_.commit(c, stored, until);
  }
  void await_commit(const cairn::save_context& c, cairn::deadline until) & { inner_.await_commit(c, until); }
  void abort(const cairn::save_context& c, std::exception_ptr failure) & noexcept {
    inner_.abort(c, std::move(failure));
  }
  void remove(std::int64_t step) & { inner_.remove(step); }
  bool quarantine(std::int64_t step) & { return inner_.quarantine(step); }
  std::uint64_t clean(cairn::run_id run) & { return inner_.clean(run); }
  void check_space(cairn::space_needed needed) & { inner_.check_space(needed); }

 private:
  friend class storage_archetype;
  explicit storage_writer_archetype(cairn::safetensors_writer<cairn::memory_store> inner)
      : inner_(std::move(inner)) {}
  cairn::safetensors_writer<cairn::memory_store> inner_;
};

class storage_reader_archetype : move_only {
  using inner_reader = cairn::safetensors_reader;

 public:
  class checkpoint_type : move_only {
   public:
    const cairn::metadata& metadata() & { return inner_.metadata(); }

   private:
    friend storage_reader_archetype;
    explicit checkpoint_type(cairn::stored_checkpoint inner) : inner_(std::move(inner)) {}
    cairn::stored_checkpoint inner_;
  };
  std::vector<std::int64_t> list() & { return inner_.list(); }
  std::vector<std::byte> fetch(std::int64_t step) & { return inner_.fetch(step); }
  checkpoint_type open(std::int64_t step, std::span<const std::byte> manifest) & {
    return checkpoint_type(inner_.open(step, manifest));
  }
  std::uint64_t read(checkpoint_type& opened, const cairn::state_dict& state, const cairn::load_plan& plan,
                     const cairn::target_resolver& resolver, cairn::read_options options,
                     cairn::deadline until) & {
    return inner_.read(opened.inner_, state, plan, resolver, options, until);
  }
  std::uint64_t verify(checkpoint_type& opened, cairn::deadline until) & {
    return inner_.verify(opened.inner_, until);
  }

 private:
  friend class storage_archetype;
  explicit storage_reader_archetype(inner_reader inner) : inner_(std::move(inner)) {}
  inner_reader inner_;
};

class storage_archetype : move_only {
  /// Not a text, but gives one.
  struct description {
    std::string text;
    operator std::string() const { return text; }  // NOLINT: that it converts is the point
  };

 public:
  using cairn_role = cairn::role::storage;
  /// The only way to make one.
  static storage_archetype over(cairn::memory_store objects) { return storage_archetype(std::move(objects)); }
  storage_writer_archetype writer() & { return storage_writer_archetype(inner_.writer()); }
  storage_reader_archetype reader() & { return storage_reader_archetype(inner_.reader()); }
  description describe() & { return {inner_.describe()}; }

 private:
  explicit storage_archetype(cairn::memory_store objects) : inner_(std::move(objects)) {}
  cairn::safetensors_storage<cairn::memory_store> inner_;
};

static_assert(cairn::StorageWriter<storage_writer_archetype>);
static_assert(cairn::StorageReader<storage_reader_archetype>);
static_assert(cairn::Storage<storage_archetype>);

}  // namespace cairn_test
