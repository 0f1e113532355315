// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "random.hpp"

namespace gpt {

/// The text that a run learns from, in memory. The last twentieth is held out: training never sees it.
class text {
 public:
  /// @throws std::runtime_error if it is empty
  explicit text(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {
    if (bytes_.empty()) throw std::runtime_error("the text is empty; give files with --text");
    digest_ = 0xcbf29ce484222325u;
    for (const std::uint8_t byte : bytes_) digest_ = (digest_ ^ byte) * 0x100000001b3u;
  }

  /// Reads files one after the other in the order of their names. A directory stands for the regular files in
  /// it, without symbolic links. No path at all: the licence texts that every Debian system has.
  /// @throws std::runtime_error that names the file that cannot be read
  static text read(std::vector<std::string> paths) {
    namespace fs = std::filesystem;
    if (paths.empty()) paths.emplace_back("/usr/share/common-licenses");
    std::vector<std::string> files;
    for (const std::string& path : paths) {
      std::error_code failed;
      if (!fs::is_directory(path, failed)) {
        files.push_back(path);
        continue;
      }
      for (const fs::directory_entry& entry : fs::directory_iterator(path, failed))
        if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path().string());
      if (failed) throw std::runtime_error("cannot list " + path + ": " + failed.message());
    }
    std::sort(files.begin(), files.end());
    std::vector<std::uint8_t> bytes;
    for (const std::string& file : files) {
      std::ifstream in(file, std::ios::binary);
      constexpr std::size_t block = 65536;
      while (in) {
        const auto had = bytes.size();
        bytes.resize(had + block);
        in.read(reinterpret_cast<char*>(bytes.data() + had), block);
        bytes.resize(had + static_cast<std::size_t>(in.gcount()));
      }
      if (!in.eof()) throw std::runtime_error("cannot read " + file + "; give readable files with --text");
    }
    return text(std::move(bytes));
  }

  std::size_t size() const { return bytes_.size(); }
  /// FNV-1a of all bytes: tells whether a resumed run reads the same text.
  std::uint64_t digest() const { return digest_; }
  std::span<const std::uint8_t> training() const { return std::span(bytes_).first(size() - size() / 20); }
  std::span<const std::uint8_t> held_out() const { return std::span(bytes_).last(size() / 20); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint64_t digest_ = 0;
};

/// The batches of a run: the tokens of a micro-batch are a function of (seed, step, micro-batch), whichever
/// rank asks. What a checkpoint keeps of it tells whether a resumed run goes on in the same stream.
class data_loader {
 public:
  /// source must outlive the loader.
  /// @throws std::runtime_error if the text is too short for one sequence
  data_loader(const text& source, std::uint64_t seed, std::size_t micro_batches, std::size_t sequences,
              std::size_t context)
      : source_(&source),
        seed_(seed),
        micro_batches_(micro_batches),
        sequences_(sequences),
        context_(context) {
    if (source.held_out().size() < context + 1)
      throw std::runtime_error("the text has " + std::to_string(source.size()) + " bytes, needed are " +
                               std::to_string(20 * (context + 1)) +
                               "; give more with --text or lower --context");
  }

  /// sequences * (context + 1) tokens from random places of the training text.
  std::vector<std::uint8_t> micro_batch(std::uint64_t step, std::size_t index) const {
    const std::span<const std::uint8_t> from = source_->training();
    std::vector<std::uint8_t> tokens;
    for (std::size_t s = 0; s < sequences_; ++s) {
      const std::size_t begin = random_at({seed_, 0x64617461, step, index, s}) % (from.size() - context_);
      tokens.insert(tokens.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
                    from.begin() + static_cast<std::ptrdiff_t>(begin + context_ + 1));
    }
    return tokens;
  }

  /// Sequence index of count that lie evenly in the held-out text.
  static std::span<const std::uint8_t> held_out_sequence(const text& source, std::size_t context,
                                                         std::size_t index, std::size_t count) {
    const std::size_t last = source.held_out().size() - (context + 1);
    return source.held_out().subspan(count > 1 ? last * index / (count - 1) : 0, context + 1);
  }

  /// What must be the same for the stream to be the same, and the position in it: 48 bytes.
  std::vector<std::byte> save(std::uint64_t step) const {
    std::vector<std::byte> bytes;
    for (const std::uint64_t word : {step, seed_, source_->digest(), std::uint64_t{micro_batches_},
                                     std::uint64_t{sequences_}, std::uint64_t{context_}})
      for (unsigned i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(word >> (8 * i)));
    return bytes;
  }

  /// Checks that the bytes belong to this stream at this step.
  /// @throws std::runtime_error if not: going on would train on other data than the run that saved
  void check(std::span<const std::byte> bytes, std::uint64_t step) const {
    const std::vector<std::byte> expected = save(step);
    if (!std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end()))
      throw std::runtime_error(
          "the checkpoint was made with another text, seed, number of micro-batches or context; "
          "resume with the same ones, or use another directory for checkpoints");
  }

 private:
  const text* source_;
  std::uint64_t seed_;
  std::size_t micro_batches_;
  std::size_t sequences_;
  std::size_t context_;
};

}  // namespace gpt
