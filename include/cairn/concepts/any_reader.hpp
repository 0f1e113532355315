// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/storage.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

class any_reader;

/// A checkpoint that an any_reader opened; its checkpoint_type. Only that reader and its copies read it. One
/// thread at a time.
class any_checkpoint {
 public:
  /// What is stored, as long as this object lives.
  [[nodiscard]] const cairn::metadata& metadata() { return face_->metadata(); }

 private:
  friend any_reader;
  struct face {
    explicit face(const void* by) noexcept : opened_by(by) {}
    virtual ~face() = default;
    virtual const cairn::metadata& metadata() = 0;
    const void* const opened_by;  ///< the reader, which this must not outlive to be read
  };
  explicit any_checkpoint(detail::owned<face> opened) noexcept : face_(std::move(opened)) {}
  detail::owned<face> face_;
};

/// A StorageReader of any type. Copies share it. What a reader may offer besides, this one has as functions:
/// each comment says what it does where the reader has none. Each call costs a virtual one.
class any_reader {
 public:
  using checkpoint_type = any_checkpoint;

  /// Holds a reader.
  template <class Reader>
    requires(!std::same_as<std::remove_cvref_t<Reader>, any_reader> &&
             StorageReader<std::remove_cvref_t<Reader>>)
  explicit any_reader(Reader&& reader)
      : face_(detail::make_shared<face_of<std::remove_cvref_t<Reader>>>(std::forward<Reader>(reader))) {}

  /// See ExpectsReads; nothing where the reader has none.
  void expect_reads() noexcept;
  // See StorageReader.
  [[nodiscard]] std::vector<std::int64_t> list();
  /// See ListsFrom; also smaller steps where the reader has none.
  [[nodiscard]] std::vector<std::int64_t> list_from(std::int64_t step);
  [[nodiscard]] std::vector<std::byte> fetch(std::int64_t step);
  [[nodiscard]] any_checkpoint open(std::int64_t step, std::span<const std::byte> manifest);
  /// @throws also usage_error (usage_bad_option) for a checkpoint that another reader opened.
  std::uint64_t read(any_checkpoint& checkpoint, const state_dict& state, const load_plan& plan,
                     const target_resolver& resolver, read_options options, deadline until);
  /// Whether the reader models SharingReader.
  [[nodiscard]] bool shares() const noexcept;
  /// See SharingReader; where the reader shares nothing, this is read().
  std::uint64_t read_shared(any_checkpoint& checkpoint, const state_dict& state, const load_plan& plan,
                            const target_resolver& resolver, read_options options, read_exchange& exchange,
                            deadline until);
  std::uint64_t verify(any_checkpoint& checkpoint, deadline until);
  /// See GatedReader; where the reader has no gate, it is not called.
  std::uint64_t verify(any_checkpoint& checkpoint, deadline until, const read_gate& gate);
  /// Whether the reader models ComparesBlocks; where it does not, it reads all.
  [[nodiscard]] bool compares_blocks() const noexcept;
  /// See WatchesCheckpoints; null where the reader does not tell.
  [[nodiscard]] std::unique_ptr<change_watch> watch();
  /// Whether the reader models ReportsRuns.
  [[nodiscard]] bool reports_runs() const noexcept;
  /// See ReportsRuns; nothing where the reader does not tell.
  [[nodiscard]] std::optional<run_id> run_of(std::int64_t step);

 private:
  struct face {
    virtual ~face() = default;
    virtual void expect_reads() noexcept = 0;
    virtual std::vector<std::int64_t> list() = 0;
    virtual std::vector<std::int64_t> list_from(std::int64_t step) = 0;
    virtual std::vector<std::byte> fetch(std::int64_t step) = 0;
    virtual any_checkpoint open(std::int64_t step, std::span<const std::byte> manifest) = 0;
    virtual std::uint64_t read(any_checkpoint::face& checkpoint, const state_dict& state,
                               const load_plan& plan, const target_resolver& resolver, read_options options,
                               deadline until) = 0;
    virtual bool shares() const noexcept = 0;
    virtual std::uint64_t read_shared(any_checkpoint::face& checkpoint, const state_dict& state,
                                      const load_plan& plan, const target_resolver& resolver,
                                      read_options options, read_exchange& exchange, deadline until) = 0;
    virtual std::uint64_t verify(any_checkpoint::face& checkpoint, deadline until, const read_gate* gate) = 0;
    virtual bool compares_blocks() const noexcept = 0;
    virtual std::unique_ptr<change_watch> watch() = 0;
    virtual bool reports_runs() const noexcept = 0;
    virtual std::optional<run_id> run_of(std::int64_t step) = 0;
  };
  template <class R>
  struct checkpoint_of final : any_checkpoint::face {
    using opened_type = typename R::checkpoint_type;
    checkpoint_of(const void* by, opened_type made) : any_checkpoint::face(by), opened(std::move(made)) {}
    const cairn::metadata& metadata() override {
      if constexpr (std::is_reference_v<decltype(opened.metadata())>) {
        return opened.metadata();
      } else {
        if (!copy) copy = detail::make_owned<cairn::metadata>(opened.metadata());
        return *copy;
      }
    }
    opened_type opened;
    detail::owned<cairn::metadata> copy;
  };
  template <class R>
  struct face_of final : face {
    template <class From>
    explicit face_of(From&& made) : reader(std::forward<From>(made)) {}
    static typename R::checkpoint_type& inner(any_checkpoint::face& checkpoint) noexcept {
      return static_cast<checkpoint_of<R>&>(checkpoint).opened;
    }
    void expect_reads() noexcept override {
      if constexpr (ExpectsReads<R>) reader.expect_reads();
    }
    std::vector<std::int64_t> list() override { return reader.list(); }
    std::vector<std::int64_t> list_from([[maybe_unused]] std::int64_t step) override {
      if constexpr (ListsFrom<R>)
        return reader.list_from(step);
      else
        return reader.list();
    }
    std::vector<std::byte> fetch(std::int64_t step) override { return reader.fetch(step); }
    any_checkpoint open(std::int64_t step, std::span<const std::byte> manifest) override {
      return any_checkpoint(
          detail::owned<any_checkpoint::face>(new checkpoint_of<R>(this, reader.open(step, manifest))));
    }
    std::uint64_t read(any_checkpoint::face& checkpoint, const state_dict& state, const load_plan& plan,
                       const target_resolver& resolver, read_options options, deadline until) override {
      return reader.read(inner(checkpoint), state, plan, resolver, options, until);
    }
    bool shares() const noexcept override { return SharingReader<R>; }
    std::uint64_t read_shared(any_checkpoint::face& checkpoint, const state_dict& state,
                              const load_plan& plan, const target_resolver& resolver, read_options options,
                              [[maybe_unused]] read_exchange& exchange, deadline until) override {
      if constexpr (SharingReader<R>)
        return reader.read_shared(inner(checkpoint), state, plan, resolver, options, exchange, until);
      else
        return reader.read(inner(checkpoint), state, plan, resolver, options, until);
    }
    std::uint64_t verify(any_checkpoint::face& checkpoint, deadline until,
                         [[maybe_unused]] const read_gate* gate) override {
      if constexpr (GatedReader<R>)
        if (gate != nullptr) return reader.verify(inner(checkpoint), until, *gate);
      return reader.verify(inner(checkpoint), until);
    }
    bool compares_blocks() const noexcept override { return ComparesBlocks<R>; }
    std::unique_ptr<change_watch> watch() override {
      if constexpr (WatchesCheckpoints<R>)
        return reader.watch();
      else
        return nullptr;
    }
    bool reports_runs() const noexcept override { return ReportsRuns<R>; }
    std::optional<run_id> run_of([[maybe_unused]] std::int64_t step) override {
      if constexpr (ReportsRuns<R>)
        return reader.run_of(step);
      else
        return std::nullopt;
    }
    R reader;
  };

  [[nodiscard]] any_checkpoint::face& of_this(any_checkpoint& checkpoint) const;

  std::shared_ptr<face> face_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_reader.ipp>
#endif
